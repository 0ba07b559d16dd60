package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

const (
	engineTimeout  = 2 * time.Second  // for opening an engine of a list, and for its sandboxes
	lookTimeout    = 10 * time.Second // for opening an engine, and for looking at a sandbox
	maxSandboxes   = 200              // in a list
	maxOutputLines = 5000
	maxOutput      = 1 << 20 // bytes of output that a sandbox keeps of one command
)

// manager returns the manager for a backend, and opens it on first use. An empty name means the default backend. The
// pages only look at sandboxes: they never open or connect to one. The limit does not include the time in which other
// engines are opened.
func (s *Server) manager(ctx context.Context, name string, limit time.Duration) (*app.Manager, error) {
	if m := s.opened(name); m != nil {
		return m, nil
	}
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done(): // for example a closed tab
		return nil, ctx.Err()
	}
	if m := s.opened(name); m != nil { // another request has opened it
		return m, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() // Close waits for the opening
	m, err := s.opts.App.OpenManager(ctx, app.Use{State: app.StateWanted, Backend: name})
	if err == nil {
		s.engines.Lock()
		defer s.engines.Unlock()
		s.managers[name] = m
	}
	return m, err
}

// opened returns the open manager for a backend, or nil. It does not wait for slow engines.
func (s *Server) opened(name string) *app.Manager {
	s.engines.Lock()
	defer s.engines.Unlock()
	for asked, m := range s.managers {
		if name == asked || name == m.Backend().Name() {
			return m
		}
	}
	return nil
}

func (s *Server) closeManagers(ctx context.Context) error {
	s.opening <- struct{}{}
	defer func() { <-s.opening }()
	s.engines.Lock()
	defer s.engines.Unlock()
	errs := []error{s.records.Close()}
	for _, m := range s.managers {
		errs = append(errs, m.Detach(ctx))
		m.Done()
	}
	clear(s.managers)
	return errors.Join(errs...)
}

// sandboxesPage is the data of sandboxes.html.
type sandboxesPage struct {
	Run      string // only the sandboxes of this run
	Rows     []app.SandboxView
	More     int      // number of hidden sandboxes
	Problems []string // unavailable engines
}

// stale is the state of a sandbox whose engine does not answer. The row comes from the records.
const stale = "last known"

// listSandboxes returns the sandboxes of the default backend and of all backends in the records, newest first.
func (s *Server) listSandboxes(ctx context.Context) (out sandboxesPage, err error) {
	known, err := app.Recorded(ctx, s.records)
	if err != nil {
		return out, err
	}
	var names []string
	if m, err := s.manager(ctx, "", engineTimeout); err != nil {
		out.Problems = append(out.Problems, "default backend: "+err.Error())
	} else {
		names = append(names, m.Backend().Name())
	}
	for _, info := range known {
		names = append(names, info.Backend)
	}
	slices.Sort(names)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards out
	for _, name := range slices.Compact(names) {
		wg.Go(func() {
			m, err := s.manager(ctx, name, engineTimeout)
			var list []app.SandboxView
			if err == nil {
				ctx, cancel := context.WithTimeout(ctx, engineTimeout)
				defer cancel()
				list, err = m.Sandboxes(ctx, false)
			}
			mu.Lock()
			defer mu.Unlock()
			if out.Rows = append(out.Rows, list...); err == nil {
				return
			}
			out.Problems = append(out.Problems, name+": "+err.Error())
			for _, info := range known {
				if info.Backend == name {
					v := app.SandboxView{ID: info.ID, Key: info.Key.String(), Run: info.Run, Backend: name, State: stale}
					out.Rows = append(out.Rows, v)
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(out.Rows, func(a, b app.SandboxView) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	slices.Sort(out.Problems)
	return out, nil
}

func (s *Server) sandboxes(w http.ResponseWriter, r *http.Request) error {
	body, err := s.listSandboxes(r.Context())
	if err != nil {
		return err
	}
	body.Run = r.FormValue("run")
	body.Rows = slices.DeleteFunc(body.Rows, func(v app.SandboxView) bool { return body.Run != "" && v.Run != body.Run })
	if body.Run != "" && len(body.Rows) == 1 {
		return redirect(w, r, "/sandboxes/"+url.PathEscape(body.Rows[0].ID))
	}
	body.More = max(len(body.Rows)-maxSandboxes, 0)
	body.Rows = body.Rows[:len(body.Rows)-body.More]
	p := page{Title: "Sandboxes", Nav: "sandboxes", Events: "/events?sandboxes=1", Body: body}
	return s.render(w, r, http.StatusOK, "sandboxes", p)
}

// sandboxPage is the data of sandbox.html, exec.html, and sandboxfiles.html.
type sandboxPage struct {
	app.SandboxView
	Tab     string
	Problem string // why the sandbox cannot be read
	Stats   *sandbox.Stats
	Execs   []app.ExecView

	// Of one command.
	Exec    string
	Status  sandbox.ExecStatus
	Lines   []outputLine
	Cut     int   // number of hidden lines
	Lost    int64 // number of discarded chunks
	Outputs []app.OutputFile

	// Of files.
	Dir, Up string
	Files   []sandbox.FileInfo
	More    int64
	File    *fileView
}

// looker reads from a sandbox.
type looker func(context.Context, *session.Session) error

// look calls fn with a sandbox, without using it: the sandbox does not start, and the idle time continues. If the
// sandbox cannot be read, the reason is in the page, and fn is not called.
func (s *Server) look(r *http.Request, p *sandboxPage, fn looker) error {
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	id := r.PathValue("id")
	list, err := s.listSandboxes(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(list.Rows, func(v app.SandboxView) bool { return v.ID == id })
	if at < 0 {
		err := fmt.Errorf("sandbox %s not found", id)
		return app.Fail(app.ExitNotFound, err, "check that its engine is running; it may have been removed")
	}
	p.SandboxView = list.Rows[at]
	var box *session.Session
	m, err := s.manager(ctx, p.Backend, lookTimeout)
	if err == nil {
		box, err = m.Look(ctx, id)
	}
	if err != nil {
		p.Problem = err.Error()
		return nil
	}
	return errors.Join(fn(ctx, box), box.Close(context.WithoutCancel(ctx)))
}

// showSandbox renders a page of a sandbox.
func (s *Server) showSandbox(w http.ResponseWriter, r *http.Request, name string, body *sandboxPage, fn looker) error {
	if err := s.look(r, body, fn); err != nil {
		return err
	}
	p := page{Title: body.ID, Nav: "sandboxes", Body: body}
	if name == "sandbox" && body.Problem == "" {
		p.Events = "/events?sandbox=" + url.QueryEscape(body.ID)
	}
	return s.render(w, r, http.StatusOK, name, p)
}

func (s *Server) sandbox(w http.ResponseWriter, r *http.Request) error {
	body := &sandboxPage{Tab: "commands"}
	return s.showSandbox(w, r, "sandbox", body, func(ctx context.Context, box *session.Session) error {
		stats, err := box.Stats(ctx)
		if err != nil {
			return err
		}
		body.Stats = &stats
		body.Execs, err = app.Execs(ctx, box)
		slices.Reverse(body.Execs)
		return err
	})
}

// outputLine is a line of one stream.
type outputLine struct {
	Stream string `json:"s"`
	Line   line   `json:"l"`
}

// streams contains the unfinished lines of a command's streams, by name.
type streams map[string]*screen

// add converts chunks. It returns the completed lines.
func (o streams) add(chunks []sandbox.Chunk) (lines []outputLine) {
	for _, c := range chunks {
		if o[c.Stream] == nil {
			o[c.Stream] = &screen{}
		}
		for _, l := range o[c.Stream].write(c.Data) {
			lines = append(lines, outputLine{c.Stream, l})
		}
	}
	return lines
}

// last returns the unfinished lines.
func (o streams) last() (lines []outputLine) {
	for _, name := range []string{"stdout", "stderr"} {
		if sc := o[name]; sc != nil && len(sc.cells) > 0 {
			lines = append(lines, outputLine{name, sc.last()})
		}
	}
	return lines
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	body := &sandboxPage{Tab: "commands", Exec: r.PathValue("exec")}
	return s.showSandbox(w, r, "exec", body, func(ctx context.Context, box *session.Session) error {
		body.Outputs = app.OutputFiles(ctx, box, body.Exec)
		return body.readOutput(ctx, box.Command(body.Exec).Read)
	})
}

// readOutput reads the kept output. It does not follow a command that writes faster than it is read.
func (p *sandboxPage) readOutput(
	ctx context.Context, read func(context.Context, sandbox.ReadRequest) (sandbox.ReadResult, error),
) error {
	o, n := streams{}, 0
	for req := (sandbox.ReadRequest{}); ; {
		res, err := read(ctx, req)
		if err != nil {
			return err
		}
		p.Status, p.Lost = res.Status, p.Lost+res.Dropped
		p.Lines = append(p.Lines, o.add(res.Chunks)...)
		for _, c := range res.Chunks {
			n += len(c.Data)
		}
		if req.SinceSeq = res.NextSeq; len(res.Chunks) == 0 || n >= maxOutput {
			break
		}
	}
	p.Lines = append(p.Lines, o.last()...)
	p.Cut = max(len(p.Lines)-maxOutputLines, 0)
	p.Lines = p.Lines[p.Cut:]
	return nil
}

// execEvents streams the output of a command. Each stream begins with the kept output.
func (s *Server) execEvents(w http.ResponseWriter, r *http.Request) error {
	return s.look(r, &sandboxPage{}, func(_ context.Context, box *session.Session) error {
		e, end := s.stream(w, r)
		defer end()
		o := streams{}
		for req := (sandbox.ReadRequest{}); ; {
			res, err := box.Command(r.PathValue("exec")).Read(e.ctx, req)
			if err == nil {
				err = e.send("lines", map[string]any{"lines": o.add(res.Chunks), "last": o.last(), "lost": res.Dropped})
			}
			if err == nil && res.Done {
				err = cmp.Or(e.send("end", nil), io.EOF)
			}
			if err != nil {
				return nil // the client has gone, or connects again
			}
			req = sandbox.ReadRequest{SinceSeq: res.NextSeq, Wait: keepAlive}
			bound.Pause(e.ctx, pollEntries) // each event repeats the unfinished lines
		}
	})
}

func (s *Server) sandboxFiles(w http.ResponseWriter, r *http.Request) error {
	name := r.FormValue("file")
	body := &sandboxPage{Tab: "files", Dir: path.Clean(cmp.Or(r.FormValue("dir"), path.Dir(name)))}
	if body.Dir != "." && body.Dir != "/tmp" {
		body.Up = path.Dir(body.Dir)
	}
	return s.showSandbox(w, r, "sandboxfiles", body, func(ctx context.Context, box *session.Session) error {
		list, err := box.ListFiles(ctx, body.Dir, sandbox.ListFilesOptions{Limit: maxEntries})
		if body.Files, body.More = list.Entries, max(list.Total-int64(len(list.Entries)), 0); err != nil || name == "" {
			return err
		}
		info, err := box.StatFile(ctx, name)
		if err != nil {
			return err
		}
		raw := "/sandboxes/" + url.PathEscape(box.ID()) + "/raw/"
		body.File, err = viewFile(r, raw, name, info.Size, func(offset, n int64) ([]byte, error) {
			data, _, err := box.ReadFileBytes(ctx, name, sandbox.ReadFileOptions{Offset: offset, Limit: n})
			return data, err
		})
		return err
	})
}

// rawFile downloads a file of a sandbox.
func (s *Server) rawFile(w http.ResponseWriter, r *http.Request) error {
	var p sandboxPage
	err := s.look(r, &p, func(_ context.Context, box *session.Session) error {
		ctx, name := r.Context(), r.PathValue("path") // a transfer may take longer than a look
		info, err := box.StatFile(ctx, name)
		if err != nil {
			return err
		}
		from, to := io.Pipe()
		go func() {
			_, err := box.ReadFile(ctx, name, to, sandbox.ReadFileOptions{Limit: max(info.Size, 1)})
			to.CloseWithError(err)
		}()
		defer from.Close() // ends the goroutine
		return send(w, r, name, from)
	})
	if err == nil && p.Problem != "" {
		err = app.Fail(app.ExitConflict, errors.New(p.Problem), "")
	}
	return err
}
