//go:build !no_kubernetes

package admincmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

func newGuestCmd(a *command) *cobra.Command {
	return cli.Subcommands(&cobra.Command{Use: "guest", Short: "Build the guest agent image for Kubernetes"},
		newGuestImageCmd(a))
}

func newGuestImageCmd(a *command) *cobra.Command {
	output, ref, arch := "", guestimage.Reference(), "amd64"
	if slices.Contains(embed.Arches(), runtime.GOARCH) {
		arch = runtime.GOARCH
	}
	cmd := &cobra.Command{
		Use:   "image --output FILE",
		Short: "Write the guest agent image",
		Long: `Write the guest agent image to an archive for docker load, ctr images import, kind load, or crane push, and
print the image reference. The guest agent is the part of Workcell that runs in each sandbox. It can't be copied
into a pod, so Kubernetes pulls it with this image. The image belongs to this version of Workcell.`,
		Example: "  workcell guest image --output guest.tar && crane push guest.tar registry.example.com/workcell/guest:1\n" +
			"  workcell guest image --output guest.tar && kind load image-archive guest.tar",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if output == "" {
				return app.UsageError(errors.New("--output is required"), "for example --output guest.tar")
			}
			if _, ok := cli.TerminalWidth(a.Stdout); ok && output == "-" {
				return app.UsageError(errors.New("--output - does not write an archive to a terminal"), "redirect standard output")
			}
			return a.writeGuestImage(output, ref, arch)
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "`FILE`: archive to write; - writes only the archive to standard output")
	cmd.Flags().StringVar(&ref, "tag", ref, "`REFERENCE`: name of the image in the archive")
	cmd.Flags().StringVar(&arch, "arch", arch,
		"`ARCH`: architecture of the image in the archive: "+strings.Join(embed.Arches(), " or "))
	return cmd
}

func (a *command) writeGuestImage(output, ref, arch string) error {
	var image bytes.Buffer // an existing file must survive a wrong flag
	err := guestimage.Write(&image, ref, arch)
	if err == nil && output == "-" {
		_, err = image.WriteTo(a.Stdout)
		return err
	}
	if err == nil {
		err = os.WriteFile(output, image.Bytes(), 0o666)
	}
	if err == nil {
		_, err = fmt.Fprintln(a.Stdout, ref)
	}
	return err
}
