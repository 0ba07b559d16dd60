package backend

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/distribution/reference"
)

// NormalizeImage returns the full form of an image reference. For example, "python" becomes
// "docker.io/library/python:latest". Two references name the same image if and only if their full forms are equal. If a
// reference has a tag and a digest, NormalizeImage drops the tag, as engines do. For a malformed reference, for example
// a repository with upper-case letters, it returns ErrInvalid.
func NormalizeImage(ref string) (string, error) {
	named, err := parseImage(ref)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

func parseImage(ref string) (reference.Named, error) {
	if strings.Contains(ref, "://") {
		// The error does not quote the reference because a URL may contain a password.
		return nil, fmt.Errorf("an image reference is not a URL; remove the scheme before ://: %w", ErrInvalid)
	}
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("image reference %s: %v: %w", quoteImage(ref), err, ErrInvalid)
	}
	return named, nil
}

// quoteImage quotes a malformed reference for an error. If the text before an "@" may be a user name and a password,
// quoteImage hides the reference.
func quoteImage(ref string) string {
	if name, _, ok := strings.Cut(ref, "@"); strings.Contains(ref, "://") || ok && strings.Contains(name, ":") {
		return "(not shown)"
	}
	return fmt.Sprintf("%.200q", ref)
}

// ImagePolicy defines the allowed images. It compares the full forms of references (see [NormalizeImage]), so that all
// spellings of a reference match. A nil policy allows every image. A policy is immutable and safe for concurrent use.
type ImagePolicy struct {
	rules []imageRule
}

// imageRule is one allowed pattern in its full form.
type imageRule struct {
	domain string // exact
	path   string // components separated by "/", each a glob; a final "**" matches one or more components
	tag    string // glob; empty if digest or anyTag is set
	digest string // exact
	anyTag bool   // allows every tag and digest of the repository
}

// NewImagePolicy returns a policy that allows the images matching at least one of the patterns. Without patterns, the
// policy allows no images.
//
//	python                    docker.io/library/python:latest, nothing else
//	python:3.11-slim          that tag
//	python:3.*                every tag with the prefix "3."
//	python:*                  every tag and digest
//	python@sha256:…           that content, under any tag
//	ghcr.io/acme/*            every image directly below ghcr.io/acme, all tags and digests
//	ghcr.io/acme/**           at any depth
//	ghcr.io/acme/*:stable     with that tag
//
// The registry name cannot contain wildcards. For a malformed pattern, NewImagePolicy returns ErrInvalid.
func NewImagePolicy(patterns ...string) (*ImagePolicy, error) {
	p := &ImagePolicy{rules: make([]imageRule, 0, len(patterns))}
	for _, s := range patterns {
		r, err := parseRule(s)
		if err != nil {
			return nil, fmt.Errorf("image pattern %.200q: %v: %w", s, err, ErrInvalid)
		}
		p.rules = append(p.rules, r)
	}
	return p, nil
}

// Check returns nil if ref is allowed. If ref is not allowed or is malformed, Check returns an error wrapping
// ErrPermission.
func (p *ImagePolicy) Check(ref string) error {
	if p == nil {
		return nil
	}
	named, err := parseImage(ref)
	if err != nil {
		return fmt.Errorf("image %s is not a valid reference and not allowed: %w", quoteImage(ref), ErrPermission)
	}
	for _, r := range p.rules {
		if r.allows(named) {
			return nil
		}
	}
	return fmt.Errorf("image %s is not allowed by allow_images: %w", reference.FamiliarString(named), ErrPermission)
}

func (r imageRule) allows(ref reference.Named) bool {
	if r.domain != reference.Domain(ref) || !matchPath(r.path, reference.Path(ref)) {
		return false
	}
	if r.anyTag {
		return true
	}
	if d, ok := ref.(reference.Digested); ok {
		return r.digest != "" && r.digest == d.Digest().String()
	}
	t, ok := ref.(reference.Tagged)
	return ok && r.tag != "" && glob(r.tag, t.Tag())
}

func parseRule(s string) (imageRule, error) {
	if !strings.Contains(s, "*") {
		named, err := reference.ParseDockerRef(s)
		if err != nil {
			return imageRule{}, err
		}
		r := imageRule{domain: reference.Domain(named), path: reference.Path(named)}
		if d, ok := named.(reference.Digested); ok {
			r.digest = d.Digest().String()
		} else if t, ok := named.(reference.Tagged); ok {
			r.tag = t.Tag()
		}
		return r, nil
	}
	if strings.ContainsAny(s, "@?[]\\") {
		return imageRule{}, errors.New("only * is a wildcard, and not in a reference with a digest")
	}
	repo, tag := s, ""
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, '/') {
		repo, tag = s[:i], s[i+1:]
		if tag == "" {
			return imageRule{}, errors.New("empty tag")
		}
	}
	// To validate a pattern, replace the wildcards with a letter and parse the result as a repository.
	named, err := reference.ParseNormalizedNamed(strings.ReplaceAll(repo, "*", "x"))
	if err != nil {
		return imageRule{}, err
	}
	r := imageRule{domain: reference.Domain(named), tag: tag, anyTag: tag == "" || tag == "*"}
	full := r.domain + "/" + reference.Path(named)
	r.path = restoreWildcards(repo, full[len(r.domain)+1:])
	if strings.Contains(strings.TrimSuffix(r.path, "**"), "**") {
		return imageRule{}, errors.New("** may only be the last component")
	}
	if strings.HasSuffix(r.path, "**") && !strings.HasSuffix(r.path, "/**") {
		return imageRule{}, errors.New("** must be a whole component below another")
	}
	if first, _, ok := strings.Cut(repo, "/"); ok && strings.Contains(first, "*") && !strings.HasPrefix(r.path, first) {
		return imageRule{}, errors.New("a registry name cannot be a pattern")
	}
	return r, nil
}

// restoreWildcards puts the wildcards of the pattern back into the normalized path. Both end with the same text, so it
// compares them from the end.
func restoreWildcards(repo, norm string) string {
	b := []byte(norm)
	for i, j := len(repo)-1, len(b)-1; i >= 0 && j >= 0; i, j = i-1, j-1 {
		if repo[i] == '*' {
			b[j] = '*'
		}
	}
	return string(b)
}

func matchPath(pattern, name string) bool {
	if head, ok := strings.CutSuffix(pattern, "/**"); ok {
		depth := strings.Count(head, "/") + 1
		parts := strings.SplitN(name, "/", depth+1)
		return len(parts) == depth+1 && glob(head, strings.Join(parts[:depth], "/"))
	}
	return glob(pattern, name)
}

// glob matches a pattern in which "*" matches any characters except "/". parseRule has already checked the pattern.
func glob(pattern, s string) bool {
	ok, err := path.Match(pattern, s)
	return ok && err == nil
}
