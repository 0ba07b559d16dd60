package ui

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
)

// Bounds of the page of changes.
const (
	maxFiles   = 200
	maxLines   = 2000
	maxContent = 512 << 10
)

// changesPage is the data of changes.html.
type changesPage struct {
	head
	app.Changes
	None    string // why there are no changes
	Stat    patch.Stat
	Files   []changed
	Filter  string
	Matches int // files that match the filter
	File    *diff
	// Of the preview and the result of applying the changes.
	Result *patch.Result
	Done   bool
	Failed string
}

// changed is a file in the list of changes.
type changed struct {
	N        int
	Path     string
	Stat     patch.Stat
	Kind     string // created, deleted, or empty
	Selected bool
}

// diff is the file that is shown.
type diff struct {
	changed
	Notes []string // changes that are not lines
	Hunks []hunk
	Cut   int // lines that are not shown
}

type hunk struct{ Lines []diffLine }

// diffLine is a line of a hunk, in three parts of which the middle has changed.
type diffLine struct {
	Op                 string // add, del, or empty
	Old, New           int    // numbers; zero for none
	Before, Mid, After string
}

func (s *Server) changes(w http.ResponseWriter, r *http.Request) error {
	body, err := s.changesOf(r)
	if err != nil {
		return err
	}
	return s.render(w, r, http.StatusOK, "changes", runPage(body.head, body))
}

func (s *Server) changesOf(r *http.Request) (body changesPage, err error) {
	if body.head, err = s.runHead(r, "changes"); err != nil {
		return body, err
	}
	if body.Changes, err = s.opts.App.RunChanges(r.Context(), body.ID); err != nil {
		body.None = err.Error()
		return body, nil
	}
	body.Stat = body.Patch.Stat()
	q := r.URL.Query()
	body.Filter = q.Get("filter")
	chosen, err := strconv.Atoi(q.Get("file"))
	for i := range body.Patch.Changes {
		c := &body.Patch.Changes[i]
		if body.Filter != "" && !strings.Contains(c.Path, body.Filter) {
			continue
		}
		body.Matches++
		f := changed{N: i, Path: c.Path, Stat: c.Stat()}
		switch {
		case c.Old == nil:
			f.Kind = "created"
		case c.New == nil:
			f.Kind = "deleted"
		}
		if f.Selected = i == chosen || err != nil; f.Selected { // the first without a choice
			err = nil
			chosen, body.File = i, newDiff(f, c, q.Get("whole") != "")
		}
		if len(body.Files) < maxFiles || f.Selected {
			body.Files = append(body.Files, f)
		}
	}
	return body, nil
}

func newDiff(f changed, c *patch.Change, whole bool) *diff {
	d := &diff{changed: f}
	if c.Old != nil && c.New != nil && c.Old.Mode != c.New.Mode {
		d.Notes = append(d.Notes, fmt.Sprintf("mode %s → %s", c.Old.Mode, c.New.Mode))
	}
	if c.IsBinary() {
		d.Notes = append(d.Notes, fmt.Sprintf("not shown as text: %d → %d bytes", size(c.Old), size(c.New)))
		return d
	}
	left := maxLines
	if size(c.Old)+size(c.New) > maxContent {
		left = maxLines / 4
	}
	for _, h := range c.Hunks() {
		old, now := h.OldLine, h.NewLine
		var out hunk
		for i, l := range h.Lines {
			if left <= 0 && !whole {
				d.Cut++
				continue
			}
			left--
			row := diffLine{Before: strings.TrimSuffix(l.Text, "\n")}
			switch l.Op {
			case patch.Deleted:
				row.Op, row.Old, old = "del", old, old+1
			case patch.Added:
				row.Op, row.New, now = "add", now, now+1
			default:
				row.Old, row.New, old, now = old, now, old+1, now+1
			}
			if other, ok := counterpart(h.Lines, i); ok {
				row.Before, row.Mid, row.After = split(row.Before, strings.TrimSuffix(other, "\n"))
			}
			if !strings.HasSuffix(l.Text, "\n") {
				row.After += " (no newline at the end of the file)"
			}
			out.Lines = append(out.Lines, row)
		}
		if out.Lines != nil {
			d.Hunks = append(d.Hunks, out)
		}
	}
	return d
}

func size(e *patch.Entry) int {
	if e == nil {
		return 0
	}
	return len(e.Content)
}

// counterpart returns the line that replaces line i or that it replaces. Deleted lines must be followed by as many added
// lines.
func counterpart(lines []patch.Line, i int) (string, bool) {
	op := lines[i].Op
	if op != patch.Deleted && op != patch.Added {
		return "", false
	}
	from, to := i, i
	for from > 0 && (lines[from-1].Op == patch.Deleted || lines[from-1].Op == patch.Added && op == patch.Added) {
		from--
	}
	for to < len(lines) && (lines[to].Op == patch.Added || lines[to].Op == patch.Deleted && op == patch.Deleted) {
		to++
	}
	half := (to - from) / 2
	if (to-from)%2 != 0 || lines[from].Op != patch.Deleted || lines[from+half].Op != patch.Added || lines[from+half-1].Op != patch.Deleted {
		return "", false
	}
	if op == patch.Deleted {
		return lines[i+half].Text, true
	}
	return lines[i-half].Text, true
}

// split returns the parts of a line before, in, and after its difference from another line.
func split(text, other string) (before, mid, after string) {
	a, b := []rune(text), []rune(other)
	from := 0
	for from < min(len(a), len(b)) && a[from] == b[from] {
		from++
	}
	end := 0
	for end < min(len(a), len(b))-from && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	if from+end == 0 { // nothing in common
		return text, "", ""
	}
	return string(a[:from]), string(a[from : len(a)-end]), string(a[len(a)-end:])
}

// patch downloads the run's patch, or the patch of one file.
func (s *Server) patch(w http.ResponseWriter, r *http.Request) error {
	c, err := s.opts.App.RunChanges(r.Context(), r.PathValue("run"))
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(r.URL.Query().Get("file")); err == nil && n >= 0 && n < len(c.Patch.Changes) {
		c.Patch.Changes = c.Patch.Changes[n : n+1]
	}
	download(w, c.Run+".patch")
	_ = c.Patch.Format(w) // a disconnected client needs no patch
	return nil
}

// applyPreview shows what applying the changes would do.
func (s *Server) applyPreview(w http.ResponseWriter, r *http.Request) error {
	return s.applied(w, r, (*patch.Patch).Check, false)
}

// apply applies the changes to the directory that the run's workspace was copied from.
func (s *Server) apply(w http.ResponseWriter, r *http.Request) error {
	return s.applied(w, r, (*patch.Patch).Apply, true)
}

func (s *Server) applied(w http.ResponseWriter, r *http.Request, do func(*patch.Patch, string) (patch.Result, error), act bool) error {
	body, err := s.changesOf(r)
	if err != nil {
		return err
	}
	if body.None != "" || body.Dir == "" {
		return app.Fail(app.ExitConflict, fmt.Errorf("the changes of run %s cannot be applied here", body.ID), "run `workcell runs apply "+body.ID+" DIR`")
	}
	if act {
		if err := note(r, body.ID, ""); err != nil {
			return err
		}
	}
	res, err := do(body.Patch, body.Dir)
	body.Result, body.Done = &res, act
	if err != nil {
		body.Failed = err.Error()
	}
	return s.render(w, r, http.StatusOK, "apply", page{Title: "Apply changes", Nav: "runs", Body: body})
}

// filesPage is the data of files.html.
type filesPage struct {
	head
	None  string // why there are no files
	Files []runfiles.Output
	More  int
	File  *fileView
}

func (s *Server) files(w http.ResponseWriter, r *http.Request) error {
	h, err := s.runHead(r, "files")
	if err != nil {
		return err
	}
	body := filesPage{head: h}
	_, made, err := s.opts.App.OpenResults(r.Context(), h.ID)
	if err != nil {
		body.None = err.Error()
		return s.render(w, r, http.StatusOK, "files", runPage(h, body))
	}
	defer made.Close() // opened for reading only
	body.Files = made.Outputs(".")
	if name := r.URL.Query().Get("file"); name != "" {
		body.File, err = viewFile(r, name, outputSize(body.Files, name), func(offset, n int64) ([]byte, error) {
			f, err := made.OpenOutput(name)
			if err != nil {
				return nil, app.Fail(app.ExitNotFound, err, "")
			}
			defer f.Close() // opened for reading only
			if _, err := io.CopyN(io.Discard, f, offset); err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			return io.ReadAll(io.LimitReader(f, n))
		})
		if err != nil {
			return err
		}
		body.File.Raw = "/runs/" + url.PathEscape(h.ID) + "/raw/" + escapePath(name)
	}
	body.More = max(len(body.Files)-maxEntries, 0)
	body.Files = body.Files[:len(body.Files)-body.More]
	return s.render(w, r, http.StatusOK, "files", runPage(h, body))
}

func outputSize(list []runfiles.Output, name string) int64 {
	i := slices.IndexFunc(list, func(o runfiles.Output) bool { return o.Path == name })
	if i < 0 {
		return 0
	}
	return list[i].Size
}

// rawOutput downloads an output.
func (s *Server) rawOutput(w http.ResponseWriter, r *http.Request) error {
	_, made, err := s.opts.App.OpenResults(r.Context(), r.PathValue("run"))
	if err != nil {
		return err
	}
	defer made.Close() // opened for reading only
	name := r.PathValue("path")
	f, err := made.OpenOutput(name)
	if errors.Is(err, fs.ErrNotExist) {
		return app.Fail(app.ExitNotFound, err, "")
	}
	if err != nil {
		return err
	}
	defer f.Close() // opened for reading only
	return send(w, r, path.Base(name), f)
}
