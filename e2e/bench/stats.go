package main

import (
	"cmp"
	"errors"
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
	start := time.Now()
	err := atOnce(callers, func(int) error {
		for range n / callers {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	})
	return float64(n/callers*callers) / time.Since(start).Seconds(), err
}

// atOnce calls f for 0 to n-1 at the same time.
func atOnce(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
