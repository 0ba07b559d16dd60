package sandbox

import (
	"testing"
	"time"
)

// quiet is a gateway that refused nothing.
type quiet struct{}

func (quiet) Open(string, Egress) (svc Service, end func(), err error) { return svc, nil, nil }
func (quiet) Refused(string, time.Time) []EgressRefusal                { return nil }

// TestDirectConnections verifies that a result contains the packets that the guest counted outside of the proxy, if the
// sandbox has an allowlist.
func TestDirectConnections(t *testing.T) {
	t.Parallel()
	s := &Sandbox{}
	if got := s.refused(time.Now(), 3); got != nil {
		t.Errorf("without a gateway: %+v", got)
	}
	s.o.Egress = quiet{}
	if got := s.refused(time.Now(), 0); got != nil {
		t.Errorf("without packets: %+v", got)
	}
	const want = "unknown (packets sent without the proxy: 3)"
	if got := s.refused(time.Now(), 3); len(got) != 1 || got[0].Host != want || got[0].Hint == "" {
		t.Errorf("three packets: %+v", got)
	}
}
