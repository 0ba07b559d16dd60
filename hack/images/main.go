// Images builds the image of the workcell command from the module, without a container engine. The result is an index
// for linux/amd64 and linux/arm64 with a bill of materials (SPDX) for each. Images writes an OCI layout and archives
// for docker load, and can push to a registry.
//
// usage: images [-version v1.2.3] [-tag ghcr.io/workcell-dev/workcell:dev] [-arch amd64,arm64] [-push REFERENCE] DIR
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// architectures are the default architectures of the index. The operating system is always Linux.
const architectures = "amd64,arm64"

// usualTag is the image name in the chart, the manifests, and the Compose files.
const usualTag = "ghcr.io/workcell-dev/workcell:dev"

type options struct {
	version, tag, push string
	arch               []string
	// The commit time, also of the files and bills. The same tree produces the same bytes.
	created time.Time
}

func main() {
	var o options
	flag.StringVar(&o.version, "version", "", "version that the command says")
	flag.StringVar(&o.tag, "tag", usualTag, "reference in the archives")
	flag.StringVar(&o.push, "push", "", "reference to push the index and its bills of materials to, with the docker command's credentials")
	arch := flag.String("arch", architectures, "architectures, with a comma between")
	seconds := flag.Int64("created", 0, "creation time of the images, in seconds since 1970")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: images [flags] DIR")
		os.Exit(2)
	}
	o.arch = strings.Split(*arch, ",")
	o.created = time.Unix(*seconds, 0).UTC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := o.write(ctx, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// built is the image for one architecture with a bill of materials.
type built struct {
	arch  string
	image v1.Image
	bill  []byte
}

// write fills a directory. layout/ is the OCI layout, and each architecture has an archive and a bill of materials.
func (o options) write(ctx context.Context, dir string) error {
	var all []built
	for _, arch := range o.arch {
		b, err := o.build(ctx, dir, arch)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		if err := o.files(dir, b); err != nil {
			return err
		}
		all = append(all, b)
	}
	index, bills, err := assemble(all)
	if err != nil {
		return err
	}
	if err := writeLayout(filepath.Join(dir, "layout"), o.tag, index, bills); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if o.push != "" {
		if err := push(ctx, o.push, index, bills); err != nil {
			return err
		}
	}
	_, err = fmt.Println(digest)
	return err
}

// build compiles the command for an architecture and creates the image.
func (o options) build(ctx context.Context, dir, arch string) (built, error) {
	binary := filepath.Join(dir, "workcell-linux-"+arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return built{}, err
	}
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+o.version, "-o", binary, "./cmd/workcell")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOARCH="+arch)
	if out, err := c.CombinedOutput(); err != nil {
		return built{}, fmt.Errorf("go build: %w: %s", err, out)
	}
	image, err := o.image(binary, arch)
	if err != nil {
		return built{}, err
	}
	bill, err := o.bill(binary)
	return built{arch: arch, image: image, bill: bill}, err
}

// files writes the files of one architecture outside of the layout.
func (o options) files(dir string, b built) error {
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "workcell-linux-"+b.arch+".spdx.json"), b.bill, 0o644); err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(dir, "workcell-linux-"+b.arch+".tar"), tag, b.image)
}

// assemble returns the index, and the bills of materials as images with references to the described images.
func assemble(all []built) (v1.ImageIndex, []v1.Image, error) {
	index, bills := mutate.IndexMediaType(empty.Index, types.OCIImageIndex), []v1.Image{}
	for _, b := range all {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: b.image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: b.arch}},
		})
		bill, err := referrer(b.image, b.bill)
		if err != nil {
			return nil, nil, err
		}
		bills = append(bills, bill)
	}
	return index, bills, nil
}

func writeLayout(dir, tag string, index v1.ImageIndex, bills []v1.Image) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	version := tag[strings.LastIndex(tag, ":")+1:]
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": version})); err != nil {
		return err
	}
	for _, bill := range bills {
		if err := to.AppendImage(bill); err != nil {
			return err
		}
	}
	return nil
}

// push pushes the index and then the bills of materials to a registry. The registry lists the bills as referrers.
func push(ctx context.Context, ref string, index v1.ImageIndex, bills []v1.Image) error {
	to, err := name.ParseReference(ref)
	if err != nil {
		return err
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(to, index, with...); err != nil {
		return err
	}
	for _, bill := range bills {
		digest, err := bill.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(to.Context().Digest(digest.String()), bill, with...); err != nil {
			return err
		}
	}
	return nil
}
