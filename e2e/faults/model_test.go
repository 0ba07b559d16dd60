//go:build linux

package faults

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/workcell-dev/workcell/backend"
)

// TestKeyModel: the model of a key accepts possible histories and rejects impossible ones. The operations of a history
// are sequential, except those marked as concurrent.
func TestKeyModel(t *testing.T) {
	type seen struct {
		asked
		answered
		together bool // concurrent with the previous operation
	}
	open := func(id string, created bool) seen {
		return seen{asked{act: actOpen}, answered{id: id, created: created}, false}
	}
	run := func(id string, err error) seen { return seen{asked{act: actExec, id: id}, answered{err: err}, false} }
	kill := func(id string, killed bool) seen {
		return seen{asked{act: actKill, id: id}, answered{killed: killed}, false}
	}
	get := func(id string, err error) seen { return seen{asked{act: actGet}, answered{id: id, err: err}, false} }
	shut := seen{asked{act: actClose}, answered{}, false}
	atOnce := func(s seen) seen { s.together = true; return s }
	for name, c := range map[string]struct {
		history []seen
		want    bool
	}{
		"opened once":                  {[]seen{open("a", true), open("a", false), run("a", nil), shut, get("", backend.ErrNotFound)}, true},
		"two openers":                  {[]seen{open("a", false), atOnce(open("a", true))}, true},
		"never made":                   {[]seen{open("a", false)}, false},
		"two sandboxes":                {[]seen{open("a", true), open("b", true)}, false},
		"closed one is opened":         {[]seen{open("a", true), shut, open("a", false)}, false},
		"closed one is found":          {[]seen{open("a", true), shut, get("a", nil)}, false},
		"closed one works":             {[]seen{open("a", true), shut, run("a", nil)}, false},
		"works while it closes":        {[]seen{open("a", true), shut, atOnce(run("a", nil))}, true},
		"closed without a close":       {[]seen{open("a", true), run("a", backend.ErrClosed)}, false},
		"lost without a kill":          {[]seen{open("a", true), run("a", backend.ErrLost)}, false},
		"killed":                       {[]seen{open("a", true), kill("a", true), open("a", false), run("a", backend.ErrLost), open("b", true), run("b", nil)}, true},
		"killed one works":             {[]seen{open("a", true), kill("a", true), run("a", nil)}, false},
		"lost one is opened":           {[]seen{open("a", true), kill("a", true), run("a", backend.ErrLost), open("a", false)}, false},
		"lost one's successor is lost": {[]seen{open("a", true), kill("a", true), open("b", true), run("b", backend.ErrLost)}, false},
		"nothing to kill":              {[]seen{open("a", true), kill("a", false)}, false},
		"gone while it is killed":      {[]seen{open("a", true), shut, atOnce(kill("a", false))}, true},
		"not found":                    {[]seen{open("a", true), get("", backend.ErrNotFound)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var ops []porcupine.Operation
			now := int64(0)
			for i, s := range c.history {
				if !s.together {
					now += 2
				}
				ops = append(ops, porcupine.Operation{ClientId: i, Input: s.asked, Call: now, Output: s.answered, Return: now + 1})
			}
			if got := porcupine.CheckOperations(keyModel(), ops); got != c.want {
				t.Errorf("accepted is %v: %s", got, fmt.Sprint(c.history))
			}
		})
	}
}
