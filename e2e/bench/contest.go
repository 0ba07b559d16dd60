package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	small   = 1 << 10
	large   = 100 << 20
	callers = 16
)

// contest measures contestants in turns.
type contest struct {
	opts      options
	all       []contestant
	sandboxes map[string]*contender // by contestant; open during the whole contest
	figures   figures
}

func (c *contest) run(ctx context.Context) (err error) {
	began := time.Now()
	c.sandboxes = map[string]*contender{}
	for _, who := range c.all {
		b, err := who.open(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", who.name(), err)
		}
		c.sandboxes[who.name()] = b
		defer func() { err = errors.Join(err, b.remove()) }() //nolint:gocritic // few
	}
	only := cmp.Or(c.opts.only, "all")
	for _, part := range []struct {
		name, in string
		measure  func(context.Context) error
	}{
		{"commands", "all cluster", c.measureExec},
		{"throughput", "all cluster", c.measureThroughput},
		{"guests", "all", c.measureGuests},
		{"opens", "all cluster", c.measureOpen},
		{"small files", "all", c.measureSmallFiles},
		{"large files", "all", c.measureLargeFiles},
		{"MCP", "all", c.measureMCP},
		{"pool", "all pool", c.measurePool},
		{"snapshots", "all snapshots", c.measureSnapshots},
		{"forwarded ports", "all forward", c.measureForward},
		{"host tools", "all codemode", c.measureHostTools},
		{"models", "all codemode", c.measureModel},
	} {
		if !slices.Contains(strings.Fields(part.in), only) {
			continue
		}
		fmt.Fprintf(os.Stderr, "bench: %s, %d s after the start\n", part.name, int(time.Since(began).Seconds()))
		if err := part.measure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// calls returns the number of calls of a contestant. An engine's own exec takes 10 to 50 times as long as ours.
func (c *contest) calls(who contestant) int {
	n := 600
	if _, ok := who.(*workcell); !ok && who.name() != "host" {
		n = 60
	}
	return max(n*c.opts.scale/100, callers)
}

// each calls f in rounds for every contestant whose sandbox offers the operation. It stores the medians over the
// rounds.
func (c *contest) each(rounds int, offers func(*contender) bool, f func(contestant, *contender) (map[string]float64, error)) error {
	values := map[string][]float64{}
	for range rounds {
		for _, who := range c.all {
			b := c.sandboxes[who.name()]
			if !offers(b) {
				continue
			}
			got, err := f(who, b)
			if err != nil {
				return fmt.Errorf("%s: %w", who.name(), err)
			}
			for what, v := range got {
				key := what + "." + who.name()
				values[key] = append(values[key], v)
			}
		}
	}
	for key, v := range values {
		c.figures[key] = median(v)
	}
	return nil
}

func always(*contender) bool { return true }

func (c *contest) measureExec(context.Context) error {
	return c.each(c.opts.rounds, always, func(who contestant, b *contender) (map[string]float64, error) {
		n := c.calls(who)
		if _, err := series(min(n, 20), b.exec); err != nil { // warm up
			return nil, err
		}
		s, err := series(n, b.exec)
		return map[string]float64{"exec_p50_ms": millis(s.quantile(.5))}, err
	})
}

func (c *contest) measureThroughput(context.Context) error {
	return c.each(c.opts.rounds, always, func(who contestant, b *contender) (map[string]float64, error) {
		perSecond, err := throughput(c.calls(who)*2, callers, b.exec)
		return map[string]float64{"exec_per_s_16": perSecond}, err
	})
}

// measureGuests reads the guest agents' resident memory after at least 2,000 commands.
func (c *contest) measureGuests(ctx context.Context) error {
	return c.each(1, hasGuest, func(_ contestant, b *contender) (map[string]float64, error) {
		if _, err := series(2000*c.opts.scale/100, b.exec); err != nil {
			return nil, err
		}
		text, err := output(ctx, b.session, "awk", "/^VmRSS:/ { print $2 }", "/proc/1/status")
		if err != nil {
			return nil, err
		}
		kib, err := strconv.Atoi(strings.TrimSpace(text))
		return map[string]float64{"guest_rss_mib": float64(kib) / 1024}, err
	})
}

func hasGuest(b *contender) bool { return b.session != nil }

// addedTo measures f in the sandboxes and on the host in turns. Under the name added, it stores the difference from the
// host of the figure what.
func (c *contest) addedTo(what, added string, f func(*contender) (map[string]float64, error)) error {
	onHost := func(b *contender) bool { return hasGuest(b) || b == c.sandboxes["host"] }
	err := c.each(c.opts.rounds, onHost, func(_ contestant, b *contender) (map[string]float64, error) { return f(b) })
	for _, who := range c.all {
		if through, ok := c.figures[what+"."+who.name()]; ok && who.name() != "host" {
			c.figures[added+"."+who.name()] = through - c.figures[what+".host"]
		}
	}
	return err
}

// measureOpen measures the time from the start until the first command's answer. It excludes the removal of the sandbox
// and the refill of a pool.
func (c *contest) measureOpen(ctx context.Context) error {
	samples := map[string]sample{}
	for range c.opts.rounds * max(5*c.opts.scale/100, 1) {
		for _, who := range c.all {
			if who == (host{}) {
				continue
			}
			figure := "open_p50_ms." + who.name()
			var b *contender
			one, err := series(1, func() (err error) {
				if b, err = who.open(ctx); err != nil {
					return err
				}
				return b.exec()
			})
			if b != nil {
				err = errors.Join(err, b.remove())
			}
			if err != nil {
				return fmt.Errorf("%s: %w", who.name(), err)
			}
			samples[figure] = append(samples[figure], one...)
		}
	}
	for figure, s := range samples {
		c.figures[figure] = millis(s.quantile(.5))
	}
	return nil
}

func hasFiles(b *contender) bool { return b.write != nil }

func (c *contest) measureSmallFiles(context.Context) error {
	return c.each(c.opts.rounds, hasFiles, func(who contestant, b *contender) (map[string]float64, error) {
		w, r, err := files(max(c.calls(who)/2, callers), small, b)
		return map[string]float64{"file_1k_ms": millis(w.quantile(.5)) + millis(r.quantile(.5))}, err
	})
}

func (c *contest) measureLargeFiles(context.Context) error {
	return c.each(max(c.opts.rounds, 5), hasFiles, func(_ contestant, b *contender) (map[string]float64, error) {
		w, r, err := files(1, large, b)
		if err != nil {
			return nil, err
		}
		write, read := large/1e6/w[0].Seconds(), large/1e6/r[0].Seconds()
		return map[string]float64{"file_100m_write_mb_s": write, "file_100m_read_mb_s": read}, nil
	})
}

// files measures n writes and n reads of a file of a size.
func files(n int, size int64, b *contender) (writes, reads sample, err error) {
	if writes, err = series(n, func() error { return b.write(size) }); err != nil {
		return nil, nil, err
	}
	reads, err = series(n, func() error {
		got, err := b.read()
		if err == nil && got != size {
			err = fmt.Errorf("read %d bytes, want %d", got, size)
		}
		return err
	})
	return writes, reads, err
}
