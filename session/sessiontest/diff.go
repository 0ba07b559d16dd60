package sessiontest

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Diff verifies Session.Diff. The session must be new.
func Diff(t *testing.T, s *session.Session) {
	t.Helper()
	base := patch.Tree{}
	for name, content := range map[string]string{
		".gitignore": "*.log\n/build\n!kept.log\n", "same": "as it was\n", "edited": "one\ntwo\n", "as long": "abc", "run.sh": "#!/bin/sh\n",
		"deleted": "deleted\n", "d/moved": "1\n2\n3\n4\n", "build/tracked": "x\n", "node_modules/m/f": "x\n", "locked/f": "x\n", "to dir": "to dir\n", "to link": "x\n", "fifo": "x\n",
		"go/main.go": "x\n", ".config/app": "x\n",
	} {
		base[name] = patch.Entry{Mode: 0o644, Content: []byte(content)}
		write(t, s, name, []byte(content), sandbox.WriteFileOptions{Mode: 0o644})
	}
	Output(t, s, `set -e
printf 'one\nTWO\n' > edited; printf abd > 'as long'; chmod +x run.sh; rm deleted
mkdir e && mv d/moved e/moved; rm 'to dir' && mkdir 'to dir' && echo new > 'to dir/f'
rm 'to link' fifo && ln -s same 'to link' && mkfifo fifo
ln -s ../out link; printf '\000\001' > binary; echo x > a.log; echo x > kept.log; echo x > build/new; echo y > build/tracked
echo gitdir: ../x > .git-file; mkdir mod; mv .git-file mod/.git
mkdir -p node_modules/m .git/hooks .cache sub/__pycache__ .workcell
echo x > node_modules/m/new; echo x > .git/hooks/pre-commit; echo x > .cache/x; echo x > sub/__pycache__/c.pyc; echo x > sub/f; echo x > .workcell/x
mkdir closed; echo x > closed/f; chmod 000 closed locked
echo y > go/main.go; echo y > .config/app; cd
for d in go/pkg/mod/m@v1 .cache/go-build .npm/_cacache .cargo/registry .m2/repository .config/go; do mkdir -p $d; echo x > $d/f; done
chmod -R a-w go/pkg; echo '[user]' > .gitconfig`)
	p, err := s.Diff(t.Context(), base)
	must(t, err)
	list, err := s.ListFiles(t.Context(), ".", sandbox.ListFilesOptions{Recursive: true})
	if err != nil || slices.ContainsFunc(list.Entries, func(e sandbox.FileInfo) bool { return strings.HasPrefix(e.Path, ".workcell") }) {
		t.Errorf("the home directory is in the list, or %v", err)
	}
	Output(t, s, "chmod 700 closed locked; chmod -R u+w ~")
	root := Output(t, s, "id -u") == "0\n" // to whom no directory is closed
	var got, omitted []string
	for _, c := range p.Changes {
		what := "edited"
		switch {
		case c.Old == nil:
			what = "created"
		case c.New == nil:
			what = "deleted"
		}
		got = append(got, c.Path+" "+what)
	}
	for _, o := range p.Omitted {
		omitted = append(omitted, o.Path)
	}
	want := []string{
		".config/app edited", "as long edited", "binary created", "build/tracked edited", "d/moved deleted", "deleted deleted", "e/moved created", "edited edited", "go/main.go edited",
		"kept.log created", "link created", "run.sh edited", "sub/f created", "to dir deleted", "to dir/f created", "to link edited",
	}
	closed := []string{"closed", "locked", "fifo"}
	if root {
		want, closed = slices.Insert(want, 4, "closed/f created"), closed[2:]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(closed, omitted); diff != "" {
		t.Errorf("omitted (-want +got):\n%s", diff)
	}
	for _, c := range p.Changes {
		if c.Path == "link" && string(c.New.Content) != "../out" {
			t.Errorf("the link leads to %q", c.New.Content)
		}
	}
	tree, _, err := s.ReadTree(t.Context(), func(dir string) bool { return dir == "sub" }, func(name string) bool { return strings.HasSuffix(name, "f") || name == "same" })
	must(t, err)
	if diff := cmp.Diff(patch.Tree{"sub/f": {Mode: 0o644, Content: []byte("x\n")}, "same": base["same"]}, tree); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}
