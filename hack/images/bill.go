package main

import (
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
)

const billType = types.MediaType("application/spdx+json")

type object = map[string]any

// bill returns the bill of materials of a binary: the modules and the Go version in the binary's build information.
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
	main["checksums"] = []object{{"algorithm": "SHA256", "checksumValue": digest}}
	main["primaryPackagePurpose"] = "APPLICATION"
	packages := []object{main}
	relationships := []object{relate("SPDXRef-DOCUMENT", "DESCRIBES", main)}
	for i, m := range append([]*debug.Module{{Path: "stdlib", Version: info.GoVersion}}, info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		p := module(i+1, m.Path, m.Version)
		packages = append(packages, p)
		relationships = append(relationships, relate(main["SPDXID"], "DEPENDS_ON", p))
	}
	return json.MarshalIndent(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "workcell " + o.version,
		"documentNamespace": "https://" + info.Main.Path + "/spdx/" + digest,
		"creationInfo":      object{"created": o.created.Format(time.RFC3339), "creators": []string{"Tool: workcell-hack-images"}},
		"packages":          packages, "relationships": relationships,
	}, "", " ")
}

func relate(from any, how string, to object) object {
	return object{"spdxElementId": from, "relatedSpdxElement": to["SPDXID"], "relationshipType": how}
}

func module(number int, path, version string) object {
	const unknown = "NOASSERTION"
	return object{
		"name": path, "SPDXID": fmt.Sprintf("SPDXRef-Package-%d", number), "versionInfo": version, "filesAnalyzed": false,
		"downloadLocation": unknown, "licenseConcluded": unknown, "licenseDeclared": unknown, "copyrightText": unknown,
		"externalRefs": []object{{
			"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + path + "@" + version,
		}},
	}
}

// referrer returns a bill of materials as a manifest whose subject is the image. Registries list it as a referrer of
// the image.
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
