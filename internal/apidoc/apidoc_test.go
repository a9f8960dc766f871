package apidoc

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

var update = flag.Bool("update", false, "rewrite the golden pages")

// sample is what make generate made of the protos in testdata, and what they import.
func sample(t *testing.T) *descriptorpb.FileDescriptorSet {
	t.Helper()
	text, err := os.ReadFile("testdata/sample.txtpb")
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := prototext.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, file := range set.GetFile() {
		have[file.GetName()] = true
	}
	for _, file := range slices.Clone(set.GetFile()) {
		for _, path := range file.GetDependency() {
			addImport(t, &set, have, path)
		}
	}
	return &set
}

// addImport adds a linked file, and what it imports, to a set that has not got it.
func addImport(t *testing.T, set *descriptorpb.FileDescriptorSet, have map[string]bool, path string) {
	t.Helper()
	if have[path] {
		return
	}
	file, err := protoregistry.GlobalFiles.FindFileByPath(path)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	have[path] = true
	set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	for i := range file.Imports().Len() {
		addImport(t, set, have, file.Imports().Get(i).Path())
	}
}

// TestPages compares the pages of a small service, which has one of everything, with testdata/pages.
func TestPages(t *testing.T) {
	t.Parallel()
	pages, err := Pages(sample(t), Options{Package: "sample.v1", Source: "..", Introduction: "Teas.\n"})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		for name, text := range pages {
			if err := os.WriteFile(filepath.Join("testdata/pages", name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	there, err := filepath.Glob("testdata/pages/*.md")
	if err != nil || len(there) != len(pages) {
		t.Errorf("testdata/pages has %d pages, want %d (%v)", len(there), len(pages), err)
	}
	for name, text := range pages {
		if want, err := os.ReadFile(filepath.Join("testdata/pages", name)); err != nil || string(want) != text {
			t.Errorf("%s is not as in testdata/pages (%v); run go test ./internal/apidoc -update and read the difference", name, err)
		}
	}
}

// TestRefused: what would be left out, or could not be linked, is an error that names it.
func TestRefused(t *testing.T) {
	t.Parallel()
	_, err := Pages(sample(t), Options{Package: "faulty.v1"})
	for _, want := range []string{
		"faulty.v1.Bare: has no comment", "faulty.v1.Bare.field: the constraint string.ipv6 has no words",
		"faulty.v1.NAMELESS: has the same anchor on its page as faulty.v1.Faulty.Nameless",
		"faulty.v1.Faulty.Nameless: declares a permission without an action",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if _, err := Pages(sample(t), Options{Package: "sample.v9"}); err == nil || !strings.Contains(err.Error(), "sample.v9") {
		t.Errorf("a package that is not there: %v", err)
	}
}

// TestReferenceLinks: every link of the reference leads to a heading or a file.
func TestReferenceLinks(t *testing.T) {
	t.Parallel()
	const reference = "../../docs/reference/api"
	paths, err := filepath.Glob(filepath.Join(reference, "*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no pages in %s: %v", reference, err)
	}
	texts, anchors := map[string]string{}, map[string]bool{}
	heading := regexp.MustCompile(`(?m)^#+ ([A-Za-z0-9.]+)$`)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page := filepath.Base(path)
		texts[page] = string(text)
		for _, match := range heading.FindAllStringSubmatch(string(text), -1) {
			anchors[page+"#"+strings.ToLower(strings.ReplaceAll(match[1], ".", ""))] = true
		}
	}
	link := regexp.MustCompile(`\]\(([^)]*)\)`)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		for _, match := range link.FindAllStringSubmatch(texts[page], -1) {
			target := match[1]
			if strings.HasPrefix(target, "#") {
				target = page + target
			}
			if strings.Contains(target, "#") && !anchors[target] {
				t.Errorf("%s links to %s, which is not there", page, match[1])
			} else if _, err := os.Stat(filepath.Join(reference, target)); !strings.Contains(target, "#") && err != nil {
				t.Errorf("%s links to %s: %v", page, target, err)
			}
		}
	}
}
