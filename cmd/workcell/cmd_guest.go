//go:build !no_kubernetes

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

func newGuestCmd(a *app) *cobra.Command {
	return group(&cobra.Command{Use: "guest", Short: "Build the guest agent image for Kubernetes"}, newGuestImageCmd(a))
}

func newGuestImageCmd(a *app) *cobra.Command {
	output, push, ref, arch := "", "", guestimage.Reference(), "amd64"
	if slices.Contains(embed.Arches(), runtime.GOARCH) {
		arch = runtime.GOARCH
	}
	cmd := &cobra.Command{
		Use:   "image (--output FILE | --push REFERENCE)",
		Short: "Write or push the guest agent image",
		Long: `Write the guest agent image to an archive for docker load, ctr images import, or kind load, or push it to a
registry for all architectures, and print its reference. Kubernetes pods get the guest agent from this image.

Pushing uses the credentials of the docker command. The image belongs to this version of Workcell.`,
		Example: "  workcell guest image --push registry.example.com/workcell/guest\n  workcell guest image --output guest.tar && kind load image-archive guest.tar",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (output == "") == (push == ""):
				return usageError(errors.New("either --output or --push is required"), "for example --output guest.tar")
			case push != "":
				if !strings.ContainsAny(push[strings.LastIndexByte(push, '/')+1:], ":@") {
					push += ":" + embed.Version()
				}
				digest, err := guestimage.Push(cmd.Context(), push)
				if err != nil {
					return fail(exitFailed, err, "check the registry name, and log in with `docker login`")
				}
				_, err = fmt.Fprintf(a.stdout, "%s@%s\n", push, digest)
				return err
			}
			return a.writeGuestImage(output, ref, arch)
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "`FILE` for the archive; with -, write only the archive to standard output")
	cmd.Flags().StringVar(&push, "push", "", "`REFERENCE` to push to; the default tag is the guest agent version")
	cmd.Flags().StringVar(&ref, "tag", ref, "`REFERENCE` of the image in the archive")
	cmd.Flags().StringVar(&arch, "arch", arch, "architecture of the image in the archive: "+strings.Join(embed.Arches(), " or "))
	return cmd
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
