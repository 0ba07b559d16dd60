package ui

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
)

// Bounds of pages with files.
const (
	maxFiles   = 200       // changed files in a list
	maxLines   = 2000      // lines of a change
	maxContent = 512 << 10 // of a change; a larger one has a quarter of the lines
	maxLine    = 2 << 10   // bytes of a line
	maxEntries = 1000      // other files in a list
)

// changesPage is the data of changes.html and apply.html.
type changesPage struct {
	head
	app.Changes
	None    string // why there are no changes
	Stat    patch.Stat
	Files   []changed
	Filter  string
	Matches int // number of matching files
	File    *changed
	Result  *patch.Result // of applying the changes, or of the preview
	Done    bool
	Failed  string
	Seen    string // digest of the changes and their directory
}

// changed is a changed file. Only the selected file has lines.
type changed struct {
	N     int
	Path  string
	Stat  patch.Stat
	Notes []string // other changes, for example of the mode
	Hunks [][]diffLine
	Cut   int // number of hidden lines
	Long  int // number of shortened lines
}

// diffLine is a line of a hunk, in three parts of which the middle has changed.
type diffLine struct {
	Op                 string // add, del, or empty
	Old, New           int    // numbers; zero for none
	Before, Mid, After string
}

func (s *Server) changes(w http.ResponseWriter, r *http.Request, h head) error {
	return s.render(w, r, http.StatusOK, "changes", runPage(h, s.changesOf(r, h)))
}

func (s *Server) changesOf(r *http.Request, h head) (body changesPage) {
	var err error
	body.head = h
	if body.Changes, err = s.opts.App.RunChanges(r.Context(), body.ID); err != nil {
		body.None = err.Error()
		return body
	}
	body.Stat, body.Filter = body.Patch.Stat(), r.FormValue("filter")
	chosen, err := strconv.Atoi(r.FormValue("file"))
	for i := range body.Patch.Changes {
		c := &body.Patch.Changes[i]
		if !strings.Contains(c.Path, body.Filter) {
			continue
		}
		f := changed{N: i, Path: c.Path, Stat: c.Stat()}
		if i == chosen || err != nil { // the first without a choice
			err, body.File = nil, f.diff(c, r.FormValue("whole") != "")
		}
		if body.Matches++; body.Matches <= maxFiles {
			body.Files = append(body.Files, f)
		}
	}
	return body
}

func size(e *patch.Entry) int {
	if e == nil {
		return 0
	}
	return len(e.Content)
}

// diff returns the file with lines.
func (f changed) diff(c *patch.Change, whole bool) *changed {
	switch {
	case c.Old == nil:
		f.Notes = append(f.Notes, "created")
	case c.New == nil:
		f.Notes = append(f.Notes, "deleted")
	case c.Old.Mode != c.New.Mode:
		f.Notes = append(f.Notes, fmt.Sprintf("mode %s → %s", c.Old.Mode, c.New.Mode))
	}
	if c.IsBinary() {
		f.Notes = append(f.Notes, fmt.Sprintf("not shown as text: %d → %d bytes", size(c.Old), size(c.New)))
		return &f
	}
	left, most := maxLines, maxLine
	if whole {
		left, most = math.MaxInt, math.MaxInt
	}
	if size(c.Old)+size(c.New) > maxContent {
		left /= 4
	}
	for _, h := range c.Hunks() {
		show := min(len(h.Lines), left)
		if f.Cut, left = f.Cut+len(h.Lines)-show, left-show; show > 0 {
			h.Lines = h.Lines[:show]
			lines, long := hunkLines(h, most)
			f.Hunks, f.Long = append(f.Hunks, lines), f.Long+long
		}
	}
	return &f
}

// hunkLines returns the lines with at most the given number of bytes each, and the number of shortened lines.
func hunkLines(h patch.Hunk, most int) (list []diffLine, long int) {
	old, now, pair := h.OldLine, h.NewLine, 0 // pair is the next line to compare
	for i, l := range h.Lines {
		row := diffLine{Old: old, New: now, Before: strings.TrimSuffix(l.Text, "\n")}
		if !strings.HasSuffix(l.Text, "\n") {
			row.After = " (no newline at the end of the file)"
		}
		if more := len(row.Before) - most; more > 0 {
			row.Before, row.After = row.Before[:most], fmt.Sprintf(" (%d more bytes)%s", more, row.After)
			long++
		}
		switch l.Op {
		case patch.Deleted:
			row.Op, row.New, old = "del", 0, old+1
		case patch.Added:
			if row.Op, row.Old, now = "add", 0, now+1; pair < i && list[pair].Op == "del" {
				list[pair].compare(&row)
				pair++
			}
		default:
			old, now = old+1, now+1
		}
		if list = append(list, row); row.Op == "" || row.Op == "del" && i > 0 && list[i-1].Op != "del" {
			pair = i
		}
	}
	return list, long
}

// compare marks the difference between two lines.
func (l *diffLine) compare(other *diffLine) {
	a, b := []rune(l.Before), []rune(other.Before)
	from, end, least := 0, 0, min(len(a), len(b))
	for from < least && a[from] == b[from] {
		from++
	}
	for end < least-from && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	if from+end == 0 {
		return // nothing in common
	}
	l.Before, l.Mid, l.After = string(a[:from]), string(a[from:len(a)-end]), string(a[len(a)-end:])+l.After
	other.Before, other.Mid, other.After = string(b[:from]), string(b[from:len(b)-end]), string(b[len(b)-end:])+other.After
}

// patch downloads the run's patch, or the patch of one file.
func (s *Server) patch(w http.ResponseWriter, r *http.Request) error {
	c, err := s.opts.App.RunChanges(r.Context(), r.PathValue("run"))
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(r.FormValue("file")); err == nil && n >= 0 && n < len(c.Patch.Changes) {
		c.Patch.Changes = c.Patch.Changes[n : n+1]
	}
	download(w, c.Run+".patch")
	_ = c.Patch.Format(w) // a disconnected client needs no patch
	return nil
}

// applyPreview shows what applying the changes would do.
func (s *Server) applyPreview(w http.ResponseWriter, r *http.Request, h head) error {
	return s.applied(w, r, h, (*patch.Patch).Check)
}

// apply applies the changes to the run's source directory.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, h head) error {
	if err := s.note(r, h.ID); err != nil {
		return err
	}
	return s.applied(w, r, h, (*patch.Patch).Apply)
}

func (s *Server) applied(
	w http.ResponseWriter, r *http.Request, h head, do func(*patch.Patch, string) (patch.Result, error),
) error {
	body := s.changesOf(r, h)
	if body.None != "" || body.Dir == "" {
		err := fmt.Errorf("the changes of run %s cannot be applied here", body.ID)
		return app.Fail(app.ExitConflict, err, "run `workcell runs apply "+body.ID+" DIR`")
	}
	body.Seen = body.digest()
	if seen := r.PostFormValue("seen"); seen != "" && seen != body.Seen {
		err := fmt.Errorf("the changes of run %s have changed since the preview", body.ID)
		return app.Fail(app.ExitConflict, err, "open the preview again")
	}
	res, err := do(body.Patch, body.Dir)
	if body.Result, body.Done = &res, r.Method == http.MethodPost; err != nil {
		body.Failed = err.Error()
	}
	return s.render(w, r, http.StatusOK, "apply", page{Title: "Apply changes", Nav: "runs", Body: body})
}

// digest returns a digest of the changes and their directory, to apply only changes that a page has shown.
func (p *changesPage) digest() string {
	sum := sha256.New()
	enc := json.NewEncoder(sum)
	_ = enc.Encode(p.Dir) // never fails
	for _, c := range p.Patch.Changes {
		_ = enc.Encode(c)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// filesPage is the data of files.html.
type filesPage struct {
	head
	None  string // why there are no files
	Files []runfiles.Output
	More  int
	File  *fileView
}

func (s *Server) files(w http.ResponseWriter, r *http.Request, h head) error {
	body := filesPage{head: h}
	_, made, err := s.opts.App.OpenResults(r.Context(), h.ID)
	if err != nil {
		body.None = err.Error()
		return s.render(w, r, http.StatusOK, "files", runPage(h, body))
	}
	defer made.Close() // opened for reading only
	body.Files = made.Outputs(".")
	if i := slices.IndexFunc(body.Files, func(o runfiles.Output) bool { return o.Path == r.FormValue("file") }); i >= 0 {
		name, raw := body.Files[i].Path, "/runs/"+url.PathEscape(h.ID)+"/raw/"
		body.File, err = viewFile(r, raw, name, body.Files[i].Size, func(offset, n int64) ([]byte, error) {
			f, err := made.OpenOutput(name)
			if err != nil {
				return nil, err
			}
			defer f.Close() // opened for reading only
			if _, err := io.CopyN(io.Discard, f, offset); err != nil {
				return nil, err
			}
			return io.ReadAll(io.LimitReader(f, n))
		})
		if err != nil {
			return err
		}
	}
	body.More = max(len(body.Files)-maxEntries, 0)
	body.Files = body.Files[:len(body.Files)-body.More]
	return s.render(w, r, http.StatusOK, "files", runPage(h, body))
}

// rawOutput downloads an output.
func (s *Server) rawOutput(w http.ResponseWriter, r *http.Request) error {
	_, made, err := s.opts.App.OpenResults(r.Context(), r.PathValue("run"))
	if err != nil {
		return err
	}
	defer made.Close() // opened for reading only
	f, err := made.OpenOutput(r.PathValue("path"))
	if err != nil {
		return app.Fail(app.ExitNotFound, err, "")
	}
	defer f.Close() // opened for reading only
	return send(w, r, r.PathValue("path"), f)
}
