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
	return group(&cobra.Command{Use: "guest", Short: "The program in every sandbox, for engines that cannot copy it there"}, newGuestImageCmd(a))
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
