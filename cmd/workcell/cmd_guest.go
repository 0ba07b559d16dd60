//go:build !no_kubernetes

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guestimage"
	"github.com/workcell-dev/workcell/session"
)

func newGuestCmd(a *app) *cobra.Command {
	return group(&cobra.Command{Use: "guest", Short: "The program in every sandbox, for engines that cannot copy it there"}, newGuestImageCmd(a), newGuestWarmPoolCmd(a))
}

func newGuestImageCmd(a *app) *cobra.Command {
	output, push, ref, arch := "", "", guestimage.Reference(), "amd64"
	if slices.Contains(embed.Arches(), runtime.GOARCH) {
		arch = runtime.GOARCH
	}
	cmd := &cobra.Command{
		Use:   "image (--output FILE | --push REFERENCE)",
		Short: "Write or push the image from which pods get the guest",
		Long: `Write the image from which the pods of a cluster get the guest, as an archive that docker load, ctr images import
and kind load take, or push it, for every architecture, to a registry with the docker command's credentials. The image
belongs to this version of workcell. Prints its reference.`,
		Example: "  workcell guest image --push registry.example.com/workcell/guest\n  workcell guest image --output guest.tar && kind load image-archive guest.tar",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (output == "") == (push == ""):
				return usageError(errors.New("either --output or --push"), "for example --output guest.tar")
			case push != "":
				if !strings.ContainsAny(push[strings.LastIndexByte(push, '/')+1:], ":@") {
					push += ":" + embed.Version()
				}
				digest, err := guestimage.Push(cmd.Context(), push)
				if err != nil {
					return fail(exitFailed, err, "is the registry right, and does `docker login` know it?")
				}
				_, err = fmt.Fprintf(a.stdout, "%s@%s\n", push, digest)
				return err
			}
			return a.writeGuestImage(output, ref, arch)
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "`FILE` to write the archive to; - is standard output, which then has nothing else")
	cmd.Flags().StringVar(&push, "push", "", "`REFERENCE` to push to; its tag is the guest's version unless it has one")
	cmd.Flags().StringVar(&ref, "tag", ref, "`REFERENCE` that the image has in the archive")
	cmd.Flags().StringVar(&arch, "arch", arch, "architecture of the image in the archive: "+strings.Join(embed.Arches(), " or "))
	return cmd
}

func newGuestWarmPoolCmd(a *app) *cobra.Command {
	o, root, replicas := &session.Request{Network: backend.NetworkNone, Pull: backend.PullMissing, IdleTimeout: -1}, "readonly", int32(3)
	var limits limitFlags
	cmd := a.verb(engineFlags|imageFlags, &cobra.Command{
		Use:   "warmpool NAME",
		Short: "Print what keeps sandboxes ready in a cluster with agent-sandbox",
		Long: `Print the SandboxTemplate and the SandboxWarmPool of a name, for kubectl apply. They keep pods ready for sandboxes like those
that the flags describe; with kubernetes.claims: NAME in the configuration such sandboxes are claimed, not made. Every sandbox
that is another one is made as before, and the log says what of it differs.`,
		Example: "  workcell guest warmpool python --backend kubernetes --image python:3.11-slim --replicas 5 | kubectl apply -f -",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if root == "writable" {
				o.Root = backend.RootWritable
			}
			if o.Limits, err = limits.limits(); err != nil {
				return err
			}
			if err := checkUser(a.env, o.User); err != nil {
				return err
			}
			o.OCIRuntime = a.ociRuntime
			return a.printWarmPool(cmd.Context(), args[0], *o, replicas)
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.Image, "image", frontmatter.DefaultImage(frontmatter.RuntimePython), "image")
	f.StringVar(&o.User, "user", "", "uid:gid that commands run as (default "+backend.DefaultUser+")")
	f.Var(oneOf(&root, "readonly", "writable"), "root", "the image's file system")
	f.Var(oneOf(&o.Network, backend.NetworkNone, backend.NetworkBridge), "network", "what commands can reach")
	f.Var(oneOf(&o.Pull, backend.PullMissing, backend.PullNever), "pull", "when the image is fetched")
	f.Int32Var(&replicas, "replicas", replicas, "how many are ready")
	limits.addTo(cmd)
	return cmd
}

// errPrinted ends an open that was for its plan only.
var errPrinted = errors.New("nothing was opened")

// printWarmPool opens a sandbox on a driver that makes none: what it is asked for then is what every open would ask for.
func (a *app) printWarmPool(ctx context.Context, name string, req session.Request, replicas int32) error {
	a.plans = func(ctx context.Context, driver backend.SandboxBackend, spec backend.Spec) error {
		pools, ok := driver.(interface {
			WarmPool(ctx context.Context, name string, spec backend.Spec, replicas int32) ([]byte, error)
		})
		if !ok {
			return usageError(errors.New("only a cluster has warm pods"), "--backend kubernetes")
		}
		text, err := pools.WarmPool(ctx, name, spec, replicas)
		if err == nil {
			_, err = a.stdout.Write(text)
		}
		return cmp.Or(err, errPrinted)
	}
	err := a.withManager(ctx, stateUnused, func(ctx context.Context, m *session.Manager) error {
		_, _, err := m.Open(ctx, session.UserKey(session.NewID()), req)
		return err
	})
	if errors.Is(err, errPrinted) {
		return nil
	}
	return err
}

func (a *app) writeGuestImage(output, ref, arch string) (err error) {
	if output == "-" {
		return guestimage.Write(a.stdout, ref, arch)
	}
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	if err := errors.Join(guestimage.Write(f, ref, arch), f.Close()); err != nil {
		return errors.Join(err, os.Remove(output))
	}
	_, err = fmt.Fprintln(a.stdout, ref)
	return err
}
