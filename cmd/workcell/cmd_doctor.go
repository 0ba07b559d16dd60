package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// doctorTimeout bounds each question to an engine, so that doctor answers also when the engine hangs.
const doctorTimeout = 5 * time.Second

// verdict returns how a check ended.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn" // works, less than it could
	verdictFail verdict = "fail" // no sandbox can run on this backend
)

// check is one finding.
type check struct {
	Name    string  `json:"name"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	Fix     string  `json:"fix,omitempty"`
}

// report is the output of doctor.
type report struct {
	Usable   bool            `json:"usable"`           // a sandbox can run on the backend that commands would take
	Backend  string          `json:"backend"`          // what was asked for
	Chosen   string          `json:"chosen,omitempty"` // what commands would take; empty when auto finds nothing
	Version  string          `json:"version"`
	Guest    string          `json:"guest"`
	Backends []*engineReport `json:"backends"`
}

// engineReport is what was found out about one backend.
type engineReport struct {
	Name         string                `json:"name"`
	Usable       bool                  `json:"usable"`
	Engine       *backend.EngineInfo   `json:"engine,omitempty"`
	Capabilities *backend.Capabilities `json:"capabilities,omitempty"`
	Checks       []check               `json:"checks"`

	there bool // the engine answered
	tried bool // a sandbox was opened, or failed to
}

func (r *engineReport) add(name string, v verdict, detail, fix string) {
	r.Checks = append(r.Checks, check{name, v, detail, fix})
}

func newDoctorCmd(a *app) *cobra.Command {
	var (
		engine engineFlags
		images imageFlags
		out    outputFlag
		image  string
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the engines and what they can enforce",
		Long: `Check which engines answer, what they can enforce and that a sandbox really opens, and say how to mend what is
missing: for each backend, or for the one that --backend names. Exits with 5 when no sandbox can run on the backend that
commands would take. It pulls nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.diagnose(cmd.Context(), engine, images, image)
			if err != nil {
				return err
			}
			if err := out.write(a.stdout, r, r.table); err != nil {
				return err
			}
			if !r.Usable {
				return exitWith(exitUnavailable)
			}
			return nil
		},
	}
	engine.addTo(cmd)
	images.addTo(cmd)
	out.addTo(cmd)
	cmd.Flags().StringVar(&image, "image", "", "image to open a sandbox from (default the first that is there)")
	return cmd
}

// diagnose looks at one backend, or at all of them at the same time: one that hangs does not hold the others up.
func (a *app) diagnose(ctx context.Context, engine engineFlags, images imageFlags, image string) (*report, error) {
	r := &report{Backend: a.backendName(engine), Version: buildVersion(), Guest: embed.Version()}
	drivers := a.engines().All()
	if r.Backend != engines.Auto {
		d, err := a.engines().Named(r.Backend)
		if err != nil {
			return nil, err
		}
		drivers = []engines.Engine{d}
	}
	r.Backends = make([]*engineReport, len(drivers))
	var looking sync.WaitGroup
	for i, d := range drivers {
		r.Backends[i] = &engineReport{Name: d.Name, Checks: []check{}}
		looking.Go(func() { a.examine(ctx, r.Backends[i], d, images, image) })
	}
	looking.Wait()
	r.choose()
	return r, nil
}

// choose sets which backend commands would take, by the rule of auto.
func (r *report) choose() {
	for _, e := range r.Backends {
		if r.Backend == e.Name || e.there && e.Name != engines.Local {
			r.Chosen, r.Usable = e.Name, e.Usable
			return
		}
	}
}

// table draws the report for people.
func (r *report) table(w io.Writer) error {
	fmt.Fprintf(w, "workcell %s, guest %s\n", r.Version, r.Guest)
	for _, e := range r.Backends {
		title := e.Name
		if r.Backend == engines.Auto && e.Name == r.Chosen {
			title += " (what --backend auto takes)"
		}
		fmt.Fprintf(w, "\n%s\n", title)
		if err := e.table(w); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.summary())
	return err
}

func (r *engineReport) table(w io.Writer) error {
	var rows [][]string
	for _, c := range r.Checks {
		rows = append(rows, []string{string(c.Verdict), c.Name, c.Detail})
		if c.Fix != "" {
			rows = append(rows, []string{" ", " ", "→ " + c.Fix})
		}
	}
	return writeTable(w, []string{"STATE", "CHECK", "FINDING"}, rows)
}

// summary is the report in one line.
func (r *report) summary() string {
	var usable []string
	tried := false
	for _, e := range r.Backends {
		if e.Usable {
			usable = append(usable, e.Name)
			tried = tried || e.tried && e.Name == r.Chosen
		}
	}
	switch {
	case r.Usable && !tried:
		return "the engine is fit; no sandbox was tried"
	case r.Usable:
		return "sandboxes can run: " + strings.Join(usable, ", ")
	case len(usable) > 0:
		return fmt.Sprintf("no sandbox can run with --backend %s; these would do: %s", cmp.Or(r.Chosen, r.Backend),
			"--backend "+strings.Join(usable, ", --backend "))
	default:
		return "no sandbox can run here"
	}
}

// failed reports whether no sandbox can run by one of the checks.
func (r *engineReport) failed() bool {
	return slices.ContainsFunc(r.Checks, func(c check) bool { return c.Verdict == verdictFail })
}
