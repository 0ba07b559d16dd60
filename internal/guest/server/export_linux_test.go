package server

import "github.com/workcell-dev/workcell/internal/guest/disk"

// Hold makes commands wait until release is called. It must be called before s serves.
func (s *Server) Hold() (release func()) {
	held := make(chan struct{})
	admit := s.admit
	s.admit = func() (disk.Marks, error) {
		<-held
		return admit()
	}
	return func() { close(held) }
}

// ExecIDs returns the IDs of the started commands in the registry.
func (s *Server) ExecIDs() []string {
	var ids []string
	for _, e := range s.execs.all() {
		ids = append(ids, e.id)
	}
	return ids
}

// PeerGone exports peerGone.
var PeerGone = peerGone
