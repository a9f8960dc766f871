package apidoc

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// notice stands at the top of each page.
const notice = "<!-- Generated from the protos by: make generate -->\n"

// Options say what to write about.
type Options struct {
	// Package is the proto package, such as wiggle.v1. What others define is named and not linked.
	Package string
	// Source is the folder of the protos, as seen from the pages.
	Source string
	// Introduction stands in the index before the list of services.
	Introduction string
}

// Pages makes a page for each file of the package and an index, README.md. The keys are file names.
func Pages(set *descriptorpb.FileDescriptorSet, opts Options) (map[string]string, error) {
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("link the descriptors: %w", err)
	}
	var own []protoreflect.FileDescriptor
	files.RangeFilesByPackage(protoreflect.FullName(opts.Package), func(f protoreflect.FileDescriptor) bool {
		own = append(own, f)
		return true
	})
	if len(own) == 0 {
		return nil, fmt.Errorf("the descriptors have no file of the package %s", opts.Package)
	}
	slices.SortFunc(own, func(a, b protoreflect.FileDescriptor) int { return strings.Compare(a.Path(), b.Path()) })
	pages := map[string]string{}
	var problems []error
	for _, file := range own {
		w := &writer{opts: opts, file: file, anchors: map[string]protoreflect.FullName{}}
		w.page()
		pages[pageOf(file)] = w.text.String()
		problems = append(problems, w.problems...)
	}
	w := &writer{opts: opts}
	w.index(own)
	pages["README.md"] = w.text.String()
	return pages, errors.Join(append(problems, w.problems...)...)
}

// pageOf names the page of a file: instance_service.md.
func pageOf(file protoreflect.FileDescriptor) string {
	return strings.TrimSuffix(path.Base(file.Path()), ".proto") + ".md"
}

// writer writes one page.
type writer struct {
	opts     Options
	file     protoreflect.FileDescriptor // nil for the index
	text     strings.Builder
	anchors  map[string]protoreflect.FullName
	problems []error
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(&w.text, format, args...) }

func (w *writer) problem(d protoreflect.Descriptor, format string, args ...any) {
	w.problems = append(w.problems, fmt.Errorf("%s: "+format, append([]any{d.FullName()}, args...)...))
}

// heading begins the part about d and keeps its anchor for d alone.
func (w *writer) heading(level int, d protoreflect.Descriptor) {
	anchor := anchorOf(d)
	if other, taken := w.anchors[anchor]; taken {
		w.problem(d, "has the same anchor on its page as %s; rename one", other)
	}
	w.anchors[anchor] = d.FullName()
	w.printf("\n%s %s\n", strings.Repeat("#", level), w.localName(d))
}

// localName is the name within the package: Instance, Outer.Inner, and for a call its own.
func (w *writer) localName(d protoreflect.Descriptor) string {
	if _, ok := d.(protoreflect.MethodDescriptor); ok {
		return string(d.Name())
	}
	return strings.TrimPrefix(string(d.FullName()), w.opts.Package+".")
}

// anchorOf is what a heading's link is called: its letters and digits in lower case.
func anchorOf(d protoreflect.Descriptor) string {
	name := string(d.Name())
	if _, ok := d.(protoreflect.MethodDescriptor); !ok {
		name = strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
	}
	return strings.ToLower(strings.ReplaceAll(name, ".", ""))
}

// link names d and links it, if it has a place on these pages.
func (w *writer) link(d protoreflect.Descriptor) string {
	if string(d.ParentFile().Package()) != w.opts.Package {
		return string(d.FullName())
	}
	target := "#" + anchorOf(d)
	if w.file == nil || d.ParentFile().Path() != w.file.Path() {
		target = pageOf(d.ParentFile()) + target
	}
	return "[" + w.localName(d) + "](" + target + ")"
}

// comment is what the proto says about d, as it stands there.
func (w *writer) comment(d protoreflect.Descriptor) string {
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	text = strings.Join(lines, "\n")
	if text == "" {
		w.problem(d, "has no comment")
	}
	return text
}
