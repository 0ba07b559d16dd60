package main

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// sample contains the durations of one series of calls.
type sample []time.Duration

// quantile returns the q-quantile by the nearest-rank rule. It returns zero for an empty sample.
func (s sample) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Clone(s)
	slices.Sort(sorted)
	i := int(q*float64(len(sorted)) + 0.5)
	return sorted[min(max(i-1, 0), len(sorted)-1)]
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// series calls f n times, one after the other.
func series(n int, f func() error) (sample, error) {
	out := make(sample, 0, n)
	for range n {
		start := time.Now()
		if err := f(); err != nil {
			return nil, err
		}
		out = append(out, time.Since(start))
	}
	return out, nil
}

// throughput calls f n times from callers goroutines and returns the number of calls per second.
func throughput(n, callers int, f func() error) (float64, error) {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	start := time.Now()
	for range callers {
		wg.Go(func() {
			for range n / callers {
				if err := f(); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n/callers*callers) / time.Since(start).Seconds(), first
}
