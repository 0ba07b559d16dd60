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
	"strconv"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

const (
	engineTimeout    = 2 * time.Second // for a list
	sandboxesPerPage = 50
	maxOutputLines   = 5000
	followWait       = 10 * time.Second
)

// manager returns the manager for a backend, and opens it on first use. An empty name means the default backend. The
// page only looks at sandboxes: it never opens or connects to one with this manager.
func (s *Server) manager(ctx context.Context, name string) (*app.Manager, error) {
	s.engines.Lock()
	defer s.engines.Unlock()
	if m := s.managers[name]; m != nil {
		return m, nil
	}
	m, err := s.opts.App.OpenManager(ctx, app.Use{State: app.StateWanted, Backend: name})
	if err != nil {
		return nil, err
	}
	if own := m.Backend().Name(); own != name && s.managers[own] != nil { // the default is open under its own name
		err = m.Detach(ctx)
		m.Done()
		m = s.managers[own]
	} else {
		s.managers[own] = m
	}
	s.managers[name] = m
	return m, err
}

func (s *Server) closeManagers(ctx context.Context) error {
	s.engines.Lock()
	defer s.engines.Unlock()
	var errs []error
	for name, m := range s.managers {
		if name != "" {
			errs = append(errs, m.Detach(ctx))
			m.Done()
		}
	}
	clear(s.managers)
	return errors.Join(append(errs, s.records.Close())...)
}

// sandboxRow is a sandbox in a list.
type sandboxRow struct {
	app.SandboxView
	Stale bool // its engine does not answer; the row comes from the records
}

// sandboxList contains the sandboxes of all engines.
type sandboxList struct {
	Rows     []sandboxRow
	Problems []string // engines that do not answer
}

// listSandboxes returns the sandboxes of the default engine and of all engines in the records, newest first.
func (s *Server) listSandboxes(ctx context.Context) (out sandboxList, err error) {
	known, err := app.Recorded(ctx, s.records)
	if err != nil {
		return out, err
	}
	names := []string{""}
	for _, info := range known {
		if !slices.Contains(names, info.Backend) {
			names = append(names, info.Backend)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex // guards out and failed
	failed := map[string]bool{}
	for _, name := range names {
		wg.Go(func() {
			m, err := s.manager(ctx, name)
			var list []app.SandboxView
			if err == nil {
				list, err = m.Sandboxes(ctx, false)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, v := range list {
				if !slices.ContainsFunc(out.Rows, func(r sandboxRow) bool { return r.ID == v.ID }) {
					out.Rows = append(out.Rows, sandboxRow{SandboxView: v})
				}
			}
			if err != nil {
				failed[name] = true
				out.Problems = append(out.Problems, cmp.Or(name, "default backend")+": "+err.Error())
			}
		})
	}
	wg.Wait()
	for _, info := range known {
		if failed[info.Backend] {
			v := app.SandboxView{ID: info.ID, Key: info.Key.String(), Run: info.Run, Backend: info.Backend, State: "last known"}
			out.Rows = append(out.Rows, sandboxRow{v, true})
		}
	}
	slices.SortStableFunc(out.Rows, func(a, b sandboxRow) int { return b.Created.Compare(a.Created) })
	return out, nil
}

// sandboxesPage is the data of sandboxes.html.
type sandboxesPage struct {
	sandboxList
	Run   string // only the sandboxes of this run
	Total int
	Next  int // from parameter of the next page, or zero
}

func (s *Server) sandboxes(w http.ResponseWriter, r *http.Request) error {
	list, err := s.listSandboxes(r.Context())
	if err != nil {
		return err
	}
	q := r.URL.Query()
	body := sandboxesPage{sandboxList: list, Run: q.Get("run")}
	body.Rows = slices.DeleteFunc(body.Rows, func(row sandboxRow) bool { return body.Run != "" && row.Run != body.Run })
	if body.Total = len(body.Rows); body.Run != "" && body.Total == 1 {
		return redirect(w, r, "/sandboxes/"+url.PathEscape(body.Rows[0].ID))
	}
	from, _ := strconv.Atoi(q.Get("from")) // anything else means the first page
	from = min(max(from, 0), body.Total)
	if body.Rows = body.Rows[from:]; len(body.Rows) > sandboxesPerPage {
		body.Rows, body.Next = body.Rows[:sandboxesPerPage], from+sandboxesPerPage
	}
	return s.render(w, r, http.StatusOK, "sandboxes", page{Title: "Sandboxes", Nav: "sandboxes", Events: "/events?sandboxes=1", Body: body})
}

// sandboxHead is the top of every page of a sandbox.
type sandboxHead struct {
	sandboxRow
	Tab     string
	Problem string // why the sandbox cannot be read
	Stats   *sandbox.Stats
}

// look calls fn with a sandbox, without using it: the sandbox does not start, and its idle time continues. If the
// sandbox cannot be read, the reason is in the head, and fn is not called.
func (s *Server) look(r *http.Request, tab string, fn func(context.Context, *app.Manager, *session.Session) error) (h sandboxHead, err error) {
	ctx := r.Context()
	list, err := s.listSandboxes(ctx)
	if err != nil {
		return h, err
	}
	id := r.PathValue("id")
	at := slices.IndexFunc(list.Rows, func(row sandboxRow) bool { return row.ID == id })
	if at < 0 {
		return h, app.Fail(app.ExitNotFound, fmt.Errorf("sandbox %s not found", id), "it was removed, or its engine does not answer")
	}
	h = sandboxHead{sandboxRow: list.Rows[at], Tab: tab}
	m, err := s.manager(ctx, h.Backend)
	if err != nil {
		h.Problem = err.Error()
		return h, nil
	}
	box, err := m.Look(ctx, h.ID)
	if err != nil {
		h.Problem = err.Error()
		return h, nil
	}
	defer func() { err = errors.Join(err, box.Close(context.WithoutCancel(ctx))) }()
	return h, fn(ctx, m, box)
}

// sandboxPage is the data of sandbox.html.
type sandboxPage struct {
	sandboxHead
	Execs []app.ExecView
}

func (s *Server) sandbox(w http.ResponseWriter, r *http.Request) error {
	var body sandboxPage
	var stats sandbox.Stats
	h, err := s.look(r, "commands", func(ctx context.Context, m *app.Manager, box *session.Session) (err error) {
		if stats, err = box.Stats(ctx); err == nil {
			body.Execs, err = app.Execs(ctx, box)
		}
		return err
	})
	if err != nil {
		return err
	}
	if body.sandboxHead = h; h.Problem == "" {
		body.Stats = &stats
	}
	slices.Reverse(body.Execs)
	return s.render(w, r, http.StatusOK, "sandbox", sandboxLayout(h, body))
}

func sandboxLayout(h sandboxHead, body any) page {
	p := page{Title: h.ID, Nav: "sandboxes", Body: body}
	if h.Problem == "" && h.Tab == "commands" {
		p.Events = "/events?sandbox=" + url.QueryEscape(h.ID)
	}
	return p
}

// execPage is the data of exec.html.
type execPage struct {
	sandboxHead
	Exec   string
	Status sandbox.ExecStatus
	Lines  []outputLine
	Cut    int    // lines that are not shown
	Lost   int64  // chunks that the sandbox has discarded
	Files  []file // with the whole output
}

type file struct {
	Name string
	Size int64
	Raw  string
}

// outputLine is a line of one stream.
type outputLine struct {
	Stream string `json:"s"`
	Line   line   `json:"l"`
}

// output converts the output of a command, which alternates between two streams.
type output struct {
	screens map[string]*screen
}

// add converts chunks. It returns the completed lines.
func (o *output) add(chunks []sandbox.Chunk) (lines []outputLine) {
	for _, c := range chunks {
		if o.screens == nil {
			o.screens = map[string]*screen{}
		}
		if o.screens[c.Stream] == nil {
			o.screens[c.Stream] = &screen{}
		}
		for _, l := range o.screens[c.Stream].write(c.Data) {
			lines = append(lines, outputLine{c.Stream, l})
		}
	}
	return lines
}

// last returns the unfinished lines.
func (o *output) last() (lines []outputLine) {
	for _, name := range []string{"stdout", "stderr"} {
		if sc := o.screens[name]; sc != nil && len(sc.cells) > 0 {
			lines = append(lines, outputLine{name, sc.last()})
		}
	}
	return lines
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) error {
	body := execPage{Exec: r.PathValue("exec")}
	h, err := s.look(r, "commands", func(ctx context.Context, _ *app.Manager, box *session.Session) error {
		var o output
		for req := (sandbox.ReadRequest{}); ; {
			res, err := box.Command(body.Exec).Read(ctx, req)
			if err != nil {
				return err
			}
			body.Status, body.Lost = res.Status, body.Lost+res.Dropped
			body.Lines = append(body.Lines, o.add(res.Chunks)...)
			if len(res.Chunks) == 0 {
				break
			}
			req.SinceSeq = res.NextSeq
		}
		body.Lines = append(body.Lines, o.last()...)
		for _, name := range []string{"stdout", "stderr"} {
			at := ".workcell/output/" + body.Exec + "." + name
			if info, err := box.StatFile(ctx, at); err == nil {
				body.Files = append(body.Files, file{name, info.Size, rawURL(box.ID(), at)})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	body.sandboxHead = h
	body.Cut = max(len(body.Lines)-maxOutputLines, 0)
	body.Lines = body.Lines[body.Cut:]
	return s.render(w, r, http.StatusOK, "exec", page{Title: body.Exec, Nav: "sandboxes", Body: body})
}

func rawURL(id, name string) string {
	return "/sandboxes/" + url.PathEscape(id) + "/raw/" + escapePath(name)
}

// execEvents streams the output of a command. Each stream begins with the output that the sandbox has kept.
func (s *Server) execEvents(w http.ResponseWriter, r *http.Request) error {
	_, err := s.look(r, "", func(_ context.Context, _ *app.Manager, box *session.Session) error {
		e, end := s.stream(w, r)
		defer end()
		var o output
		for req := (sandbox.ReadRequest{}); ; {
			res, err := box.Command(r.PathValue("exec")).Read(e.ctx, req)
			if err != nil {
				break // the client connects again
			}
			lines := o.add(res.Chunks)
			err = e.send(0, "lines", map[string]any{"lines": lines, "last": o.last(), "lost": res.Dropped})
			if err == nil && res.Done {
				err = cmp.Or(e.send(0, "end", nil), io.EOF)
			}
			if err != nil {
				break
			}
			req.SinceSeq, req.Wait = res.NextSeq, followWait
		}
		return nil
	})
	return err
}

// sandboxFilesPage is the data of sandboxfiles.html.
type sandboxFilesPage struct {
	sandboxHead
	Dir   string
	Up    string // the directory above; empty at the top
	Files []sandbox.FileInfo
	More  int64
	File  *fileView
}

func (s *Server) sandboxFiles(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	body := sandboxFilesPage{Dir: path.Clean(cmp.Or(q.Get("dir"), "."))}
	if name := q.Get("file"); name != "" && q.Get("dir") == "" {
		body.Dir = path.Dir(name)
	}
	if body.Dir != "." && body.Dir != "/tmp" {
		body.Up = path.Dir(body.Dir)
	}
	h, err := s.look(r, "files", func(ctx context.Context, _ *app.Manager, box *session.Session) error {
		list, err := box.ListFiles(ctx, body.Dir, sandbox.ListFilesOptions{Limit: maxEntries})
		if err != nil {
			return err
		}
		body.Files, body.More = list.Entries, max(list.Total-int64(len(list.Entries)), 0)
		name := q.Get("file")
		if name == "" {
			return nil
		}
		info, err := box.StatFile(ctx, name)
		if err != nil {
			return err
		}
		body.File, err = viewFile(r, name, info.Size, func(offset, n int64) ([]byte, error) {
			data, _, err := box.ReadFileBytes(ctx, name, sandbox.ReadFileOptions{Offset: offset, Limit: n})
			return data, err
		})
		if err == nil {
			body.File.Raw = rawURL(box.ID(), name)
		}
		return err
	})
	if err != nil {
		return err
	}
	body.sandboxHead = h
	return s.render(w, r, http.StatusOK, "sandboxfiles", sandboxLayout(h, body))
}

// rawFile downloads a file of a sandbox.
func (s *Server) rawFile(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("path")
	h, err := s.look(r, "", func(ctx context.Context, _ *app.Manager, box *session.Session) error {
		info, err := box.StatFile(ctx, name)
		if err != nil {
			return err
		}
		if info.Type != sandbox.TypeFile {
			return app.Fail(app.ExitNotFound, fmt.Errorf("%s is not a file", name), "")
		}
		from, to := io.Pipe()
		go func() {
			_, err := box.ReadFile(ctx, name, to, sandbox.ReadFileOptions{Limit: max(info.Size, 1)})
			to.CloseWithError(err)
		}()
		defer from.Close() // ends the reader
		return send(w, r, path.Base(name), from)
	})
	if err == nil && h.Problem != "" {
		err = app.Fail(app.ExitConflict, errors.New(h.Problem), "")
	}
	return err
}

// kill stops a command of a sandbox.
func (s *Server) kill(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := note(r, "", id); err != nil {
		return err
	}
	return s.act(r, id, func(ctx context.Context, m *app.Manager) error {
		box, err := m.Connect(ctx, id)
		if err == nil {
			_, err = box.Command(r.PathValue("exec")).Signal(ctx, "")
		}
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
		return redirect(w, r, "/sandboxes/"+url.PathEscape(id))
	})
}

// remove removes a sandbox with its files.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := note(r, "", id); err != nil {
		return err
	}
	return s.act(r, id, func(ctx context.Context, m *app.Manager) error {
		if err := m.Remove(ctx, id, true); err != nil {
			return err
		}
		return redirect(w, r, "/sandboxes")
	})
}

// act calls fn with a manager of the sandbox's engine that ends with the call, because acting counts as use.
func (s *Server) act(r *http.Request, id string, fn func(context.Context, *app.Manager) error) error {
	return s.opts.App.WithManager(r.Context(), app.Use{State: app.StateWanted, Sandboxes: []string{id}}, fn)
}
