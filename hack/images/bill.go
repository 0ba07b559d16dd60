package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const billType = types.MediaType("application/spdx+json")

// bill returns what a binary is made of, as the binary itself says: the modules, and the Go that compiled it.
func (o options) bill(binary string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	main := module(0, info.Main.Path, o.version)
	main.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest}}
	main.PrimaryPackagePurpose = "APPLICATION"
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: "workcell " + o.version,
		DocumentNamespace: "https://" + info.Main.Path + "/spdx/" + digest,
		CreationInfo: &spdx.CreationInfo{
			Created: o.created.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "workcell-hack-images"}},
		},
		Packages: []*spdx.Package{main},
	}
	relate(doc, "DOCUMENT", common.TypeRelationshipDescribe, main)
	for i, m := range append([]*debug.Module{{Path: "stdlib", Version: info.GoVersion}}, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		p := module(i+1, m.Path, m.Version)
		doc.Packages = append(doc.Packages, p)
		relate(doc, main.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, p)
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetIndent("", " ")
	err = e.Encode(doc)
	return buf.Bytes(), err
}

func relate(doc *spdx.Document, from common.ElementID, how string, to *spdx.Package) {
	doc.Relationships = append(doc.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(from)), RefB: common.MakeDocElementID("", string(to.PackageSPDXIdentifier)), Relationship: how,
	})
}

func module(number int, path, version string) *spdx.Package {
	return &spdx.Package{
		PackageName: path, PackageSPDXIdentifier: common.ElementID(fmt.Sprintf("Package-%d", number)), PackageVersion: version,
		PackageDownloadLocation: "NOASSERTION", PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: "NOASSERTION", PackageCopyrightText: "NOASSERTION",
		IsFilesAnalyzedTagPresent: true,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + path + "@" + version,
		}},
	}
}

// referrer returns a bill as a manifest whose subject is the image, which registries list for it.
func referrer(img v1.Image, bill []byte) (v1.Image, error) {
	subject, err := partial.Descriptor(img)
	if err != nil {
		return nil, err
	}
	a, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, billType), types.OCIManifestSchema1), static.NewLayer(bill, billType))
	if err != nil {
		return nil, err
	}
	return mutate.Subject(a, *subject).(v1.Image), nil
}
