package server

// Hold makes commands wait for a first look at the workspace until release is called. It must be called before s serves.
func (s *Server) Hold() (release func()) {
	q := &quota{dir: s.cfg.Workdir, first: make(chan struct{}), quit: make(chan struct{}), done: make(chan struct{}), kick: make(chan struct{}, 1)}
	close(q.done)
	s.quotas.workspace = q
	return func() { close(q.first) }
}

// ExecIDs gives the commands that were started and are remembered.
func (s *Server) ExecIDs() []string {
	var ids []string
	for _, e := range s.execs.all() {
		ids = append(ids, e.id)
	}
	return ids
}
