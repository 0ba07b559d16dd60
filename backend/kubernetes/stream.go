package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// attachTimeout bounds the opening of a stream to a running sandbox.
const attachTimeout = 15 * time.Second

// Dial starts the guest agent's bridge in the sandbox.
func (d *driver) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	s := d.first.take(id)
	if s != nil {
		return s, nil
	}
	err := d.reach(ctx, "dial", id, func(ctx context.Context, pod *corev1.Pod) (err error) {
		s, err = d.exec(ctx, pod.Name, embed.Path, "connect")
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// reach calls f for the pod of a running sandbox, to execute a program in the pod. It retries failures while the pod's
// phase is running, because a restarted kubelet does not know any pods for a moment.
func (d *driver) reach(ctx context.Context, what, id string, f func(context.Context, *corev1.Pod) error) error {
	bounded, cancel := context.WithTimeout(ctx, min(attachTimeout, d.opts.CallTimeout))
	defer cancel()
	err := d.calls.Retry(bounded, func() (bool, error) {
		pod, info, err := d.own(bounded, id)
		if err != nil {
			return true, err
		}
		if info.State != backend.StateRunning {
			return true, lost(pod)
		}
		err = f(bounded, pod)
		return err == nil || rejects(err), d.calls.Fail(bounded, what, err)
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return d.calls.Fail(ctx, what, ctx.Err())
	case bounded.Err() != nil:
		return fmt.Errorf("kubernetes: %s: cannot reach the sandbox: %w", what, backend.ErrUnavailable)
	}
	return err
}

// stream provides the standard streams of a program in a pod.
type stream struct {
	*io.PipeWriter // standard input
	*io.PipeReader // standard output

	end  context.CancelFunc
	done chan struct{}
	once sync.Once
}

// ended reports whether the program has exited.
func (s *stream) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Close closes both directions, ends pending calls, and thereby ends the program.
func (s *stream) Close() error {
	s.once.Do(func() {
		_ = s.PipeReader.Close() // always succeeds; first, to make reads return its error
		s.end()
		_ = s.PipeWriter.Close() // always succeeds
		<-s.done
	})
	return nil
}

// exec runs a program in a pod. It returns the program's standard input and output after the server has connected them.
// ctx only bounds the connecting.
func (d *driver) exec(ctx context.Context, pod string, argv ...string) (*stream, error) {
	options := &corev1.PodExecOptions{Container: containerName, Command: argv, Stdin: true, Stdout: true}
	url := d.api.core.Post().Resource("pods").Namespace(d.opts.Namespace).Name(pod).SubResource("exec").
		VersionedParams(options, d.api.parameters).URL()
	executor, err := d.executor(url)
	if err != nil {
		return nil, err
	}
	// The client would also log errors of the stream.
	life, end := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.Discard()))
	in, input := io.Pipe()
	source := &source{Reader: in, wanted: make(chan struct{})}
	output, out := io.Pipe()
	s := &stream{PipeWriter: input, PipeReader: output, end: end, done: make(chan struct{})}
	failed := make(chan error, 1)
	go func() {
		defer close(s.done)
		err := executor.StreamWithContext(life, remotecommand.StreamOptions{Stdin: source, Stdout: out})
		failed <- err
		_ = out.CloseWithError(io.EOF) // the guest agent's protocol explains the end
		_ = input.Close()              // always succeeds
	}()
	select {
	case <-source.wanted:
		return s, nil
	case err := <-failed:
		end()
		if err == nil { // the program has already exited, and the output is lost
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.Close())
	}
}

// waiting stores the first stream to each new sandbox for the first Dial, because opening another stream needs an exec.
type waiting struct{ streams sync.Map } // sandbox ID -> *stream

// keep stores a stream for the time attachTimeout.
func (w *waiting) keep(id string, s *stream) {
	if old, was := w.streams.Swap(id, s); was {
		_ = old.(*stream).Close() // always succeeds
	}
	time.AfterFunc(attachTimeout, func() {
		if w.streams.CompareAndDelete(id, s) {
			_ = s.Close() // always succeeds
		}
	})
}

// take returns the stored stream, or nil if no open stream is stored.
func (w *waiting) take(id string) *stream {
	s, ok := w.streams.LoadAndDelete(id)
	if !ok || s.(*stream).ended() {
		return nil
	}
	return s.(*stream)
}

// drop closes the stored stream, if any.
func (w *waiting) drop(id string) {
	if s := w.take(id); s != nil {
		_ = s.Close() // always succeeds
	}
}

// end closes all stored streams.
func (w *waiting) end() {
	for id := range w.streams.Range {
		w.drop(id.(string))
	}
}

// source is the input of a program. A read from it is the first sign of connected streams.
type source struct {
	io.Reader
	wanted chan struct{}
	once   sync.Once
}

func (s *source) Read(p []byte) (int, error) {
	s.once.Do(func() { close(s.wanted) })
	return s.Reader.Read(p)
}
