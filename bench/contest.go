package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

const (
	small   = 1 << 10
	large   = 100 << 20
	callers = 16
)

// contest holds what the measurements share.
type contest struct {
	opts    options
	engine  *engine
	manager *session.Manager
	figures figures

	sandbox *session.Session // ours
	rawID   string           // the engine's
}

func (c *contest) run(ctx context.Context) (err error) {
	id, remove, err := c.engine.open(ctx)
	if err != nil {
		return err
	}
	c.rawID = id
	defer func() { err = errors.Join(err, remove()) }()
	if c.sandbox, err = c.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.sandbox.Close(context.WithoutCancel(ctx))) }()
	for _, measure := range []func(context.Context) error{
		c.measureExec, c.measureThroughput, c.measureGuest, c.measureOpen, c.measureSmallFiles, c.measureLargeFiles,
	} {
		if err := measure(ctx); err != nil {
			return err
		}
	}
	c.ratios()
	return nil
}

func (c *contest) open(ctx context.Context) (*session.Session, error) {
	key := session.AgentKey(session.NewRunID(), session.DefaultName)
	s, _, err := c.manager.Open(ctx, key, session.Request{
		Image: c.opts.image, Limits: backend.Limits{CPUMillis: int64(runtime.NumCPU()) * 1000},
	})
	return s, err
}

func (c *contest) calls(n int) int { return max(n*c.opts.scale/100, callers) }

// contestant is one way to run /bin/true.
type contestant struct {
	name  string
	calls int
	exec  func() error
}

func (c *contest) contestants(ctx context.Context) []contestant {
	return []contestant{
		{"host", c.calls(600), func() error { return exec.CommandContext(ctx, "/bin/true").Run() }},
		{"docker_api", c.calls(60), func() error { return c.engine.exec(ctx, c.rawID, "/bin/true") }},
		{"workcell_docker", c.calls(600), func() error { return c.exec(ctx, c.sandbox) }},
	}
}

func (c *contest) exec(ctx context.Context, s *session.Session) error {
	res, err := s.Exec(ctx, session.ExecRequest{Argv: []string{"/bin/true"}})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("/bin/true exited with %d", res.ExitCode)
	}
	return err
}

func (c *contest) measureExec(ctx context.Context) error {
	p50, p99 := map[string][]float64{}, map[string][]float64{}
	for range c.opts.rounds {
		for _, who := range c.contestants(ctx) {
			if _, err := series(min(who.calls, 20), who.exec); err != nil { // warm up
				return err
			}
			s, err := series(who.calls, who.exec)
			if err != nil {
				return fmt.Errorf("%s: %w", who.name, err)
			}
			p50[who.name] = append(p50[who.name], millis(s.quantile(.5)))
			p99[who.name] = append(p99[who.name], millis(s.quantile(.99)))
		}
	}
	for name := range p50 {
		c.figures["exec_p50_ms."+name] = median(p50[name])
		c.figures["exec_p99_ms."+name] = median(p99[name])
	}
	return nil
}

func (c *contest) measureThroughput(ctx context.Context) error {
	rate := map[string][]float64{}
	for range c.opts.rounds {
		for _, who := range c.contestants(ctx) {
			perSecond, err := throughput(who.calls*2, callers, who.exec)
			if err != nil {
				return fmt.Errorf("%s: %w", who.name, err)
			}
			rate[who.name] = append(rate[who.name], perSecond)
		}
	}
	for name, rates := range rate {
		c.figures["exec_per_s_16."+name] = median(rates)
	}
	return nil
}

// measureOpen times from nothing to the answer of a first command, the sandbox's removal excluded.
func (c *contest) measureOpen(ctx context.Context) error {
	var raw, ours sample
	for range c.opts.rounds * max(5*c.opts.scale/100, 1) {
		var remove func() error
		one, err := series(1, func() (err error) {
			var id string
			if id, remove, err = c.engine.open(ctx); err != nil {
				return err
			}
			return c.engine.exec(ctx, id, "/bin/true")
		})
		if remove != nil {
			err = errors.Join(err, remove())
		}
		if err != nil {
			return err
		}
		raw = append(raw, one...)

		var s *session.Session
		one, err = series(1, func() (err error) {
			if s, err = c.open(ctx); err != nil {
				return err
			}
			return c.exec(ctx, s)
		})
		if s != nil {
			err = errors.Join(err, s.Close(ctx))
		}
		if err != nil {
			return err
		}
		ours = append(ours, one...)
	}
	c.figures["open_p50_ms.docker_api"] = millis(raw.quantile(.5))
	c.figures["open_p50_ms.workcell_docker"] = millis(ours.quantile(.5))
	return nil
}

func (c *contest) measureSmallFiles(ctx context.Context) error {
	body := bytes.Repeat([]byte("x"), small)
	pairs := []struct {
		name        string
		calls       int
		write, read func() error
	}{
		{"docker_api", c.calls(30),
			func() error { return c.engine.write(ctx, c.rawID, "/workspace", "small", small) },
			func() error { return sized(small)(c.engine.read(ctx, c.rawID, "/workspace/small")) }},
		{"workcell_docker", c.calls(500),
			func() error { return c.write(ctx, "small", bytes.NewReader(body), small) },
			func() error { return sized(small)(c.read(ctx, "small")) }},
	}
	figures := map[string][]float64{}
	for range c.opts.rounds {
		for _, who := range pairs {
			w, err := series(who.calls, who.write)
			if err != nil {
				return fmt.Errorf("%s: %w", who.name, err)
			}
			r, err := series(who.calls, who.read)
			if err != nil {
				return fmt.Errorf("%s: %w", who.name, err)
			}
			write, read := millis(w.quantile(.5)), millis(r.quantile(.5))
			figures["file_1k_write_ms."+who.name] = append(figures["file_1k_write_ms."+who.name], write)
			figures["file_1k_read_ms."+who.name] = append(figures["file_1k_read_ms."+who.name], read)
			figures["file_1k_ms."+who.name] = append(figures["file_1k_ms."+who.name], write+read)
		}
	}
	for key, values := range figures {
		c.figures[key] = median(values)
	}
	return nil
}

func (c *contest) measureLargeFiles(ctx context.Context) error {
	transfers := []struct {
		key  string
		call func() error
	}{
		{"file_100m_write_mb_s.docker_api", func() error { return c.engine.write(ctx, c.rawID, "/workspace", "large", large) }},
		{"file_100m_write_mb_s.workcell_docker", func() error { return c.write(ctx, "large", io.LimitReader(zeros{}, large), large) }},
		{"file_100m_read_mb_s.docker_api", func() error { return sized(large)(c.engine.read(ctx, c.rawID, "/workspace/large")) }},
		{"file_100m_read_mb_s.workcell_docker", func() error { return sized(large)(c.read(ctx, "large")) }},
	}
	guest, err := c.guestRSS(ctx)
	if err != nil {
		return err
	}
	host, err := rssMiB("self")
	if err != nil {
		return err
	}
	speeds := map[string][]float64{}
	for range max(c.opts.rounds, 3) {
		for _, t := range transfers {
			s, err := series(1, t.call)
			if err != nil {
				return fmt.Errorf("%s: %w", t.key, err)
			}
			speeds[t.key] = append(speeds[t.key], large/1e6/s[0].Seconds())
		}
	}
	for key, values := range speeds {
		c.figures[key] = median(values)
	}
	for _, name := range []string{"docker_api", "workcell_docker"} {
		c.figures["file_100m_mb_s."+name] = min(c.figures["file_100m_write_mb_s."+name], c.figures["file_100m_read_mb_s."+name])
	}
	guestAfter, err := c.guestRSS(ctx)
	if err != nil {
		return err
	}
	hostAfter, err := rssMiB("self")
	c.figures["file_100m_guest_growth_mib"] = guestAfter - guest
	c.figures["file_100m_host_growth_mib"] = hostAfter - host
	return err
}

// measureGuest reads the guest's resident memory after at least 2,000 commands.
func (c *contest) measureGuest(ctx context.Context) error {
	if _, err := series(2000, func() error { return c.exec(ctx, c.sandbox) }); err != nil {
		return err
	}
	rss, err := c.guestRSS(ctx)
	c.figures["guest_rss_mib"] = rss
	return err
}

func (c *contest) guestRSS(ctx context.Context) (float64, error) {
	state, err := c.engine.api.ContainerInspect(ctx, c.sandbox.Info().EngineID)
	if err != nil {
		return 0, err
	}
	return rssMiB(strconv.Itoa(state.State.Pid))
}

func (c *contest) write(ctx context.Context, name string, r io.Reader, size int64) error {
	_, err := c.sandbox.WriteFile(ctx, name, r, session.WriteFileOptions{Overwrite: true, Size: size})
	return err
}

func (c *contest) read(ctx context.Context, name string) (int64, error) {
	var n counter
	_, err := c.sandbox.ReadFile(ctx, name, &n, session.ReadFileOptions{})
	return int64(n), err
}

// ratios adds what the figures are compared by.
func (c *contest) ratios() {
	f := c.figures
	f["ratio.exec_vs_host"] = f["exec_p50_ms.workcell_docker"] / f["exec_p50_ms.host"]
	f["ratio.docker_api_exec_vs_ours"] = f["exec_p50_ms.docker_api"] / f["exec_p50_ms.workcell_docker"]
	f["ratio.throughput_vs_docker_api"] = f["exec_per_s_16.workcell_docker"] / f["exec_per_s_16.docker_api"]
	f["ratio.open_vs_docker_api"] = f["open_p50_ms.workcell_docker"] / f["open_p50_ms.docker_api"]
	f["ratio.copy_api_file_100m_write_vs_ours"] = f["file_100m_write_mb_s.docker_api"] / f["file_100m_write_mb_s.workcell_docker"]
	f["ratio.copy_api_file_100m_read_vs_ours"] = f["file_100m_read_mb_s.docker_api"] / f["file_100m_read_mb_s.workcell_docker"]
}

// sized turns a transfer's size and error into an error when the size is not want.
func sized(want int64) func(int64, error) error {
	return func(n int64, err error) error {
		if err == nil && n != want {
			err = fmt.Errorf("read %d bytes, want %d", n, want)
		}
		return err
	}
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// rssMiB reads a process's resident memory from /proc of this machine, where a local engine's containers are too.
func rssMiB(pid string) (float64, error) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, fmt.Errorf("resident memory (the engine must run on this machine): %w", err)
	}
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		return 0, errors.New("no VmRSS in /proc/" + pid + "/status")
	}
	kib, err := strconv.Atoi(string(match[1]))
	return float64(kib) / 1024, err
}
