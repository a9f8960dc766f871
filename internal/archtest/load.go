package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// modulePath is the root module's path; the other modules' paths are it and their folder.
const modulePath = "github.com/wiggle-run/wiggle"

// outsideWorkspace are folders that hold no package of the four modules.
var outsideWorkspace = []string{"tools", "web", "deploy"}

// A Tree is the source of the repository's packages, by path (./pkg/shardid).
type Tree struct {
	fset     *token.FileSet
	packages []*pkg // sorted by path
	byPath   map[string]*pkg
}

// A pkg is one folder's Go files, those of its external test package among them.
type pkg struct {
	path  string
	files []*file
}

type file struct {
	path      string // pkg/shardid/parse.go
	syntax    *ast.File
	imports   map[string]token.Pos // ./x for ours, else the import path
	test      bool
	generated bool
	lines     int
	code      int // lines that are neither blank nor only a comment
}

// Load reads the tree below root, without testdata and folders that the go command ignores.
func Load(root fs.FS) (*Tree, error) {
	tree := &Tree{fset: token.NewFileSet(), byPath: map[string]*pkg{}}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != "." && ignored(name) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		return tree.read(root, name)
	})
	if err != nil {
		return nil, fmt.Errorf("load source: %w", err)
	}
	slices.SortFunc(tree.packages, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	return tree, nil
}

// codeLines counts the lines on which a token stands or goes on.
func codeLines(source []byte) int {
	fset := token.NewFileSet()
	at := fset.AddFile("", -1, len(source))
	var tokens scanner.Scanner
	tokens.Init(at, source, nil, 0)
	count, last := 0, 0
	for {
		pos, tok, literal := tokens.Scan()
		if tok == token.EOF {
			return count
		}
		first := at.Line(pos)
		end := first + strings.Count(literal, "\n")
		if tok == token.SEMICOLON {
			end = first // one that the line's end stands for
		}
		count += max(0, end-max(first-1, last))
		last = max(last, end)
	}
}

func ignored(dir string) bool {
	base := path.Base(dir)
	return base == "testdata" || base == "node_modules" || base == "vendor" ||
		strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || slices.Contains(outsideWorkspace, dir)
}

func (t *Tree) read(root fs.FS, name string) error {
	source, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	syntax, err := parser.ParseFile(t.fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	read := &file{
		path:      name,
		syntax:    syntax,
		imports:   make(map[string]token.Pos, len(syntax.Imports)),
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(syntax),
		lines:     bytes.Count(source, []byte("\n")),
		code:      codeLines(source),
	}
	for _, spec := range syntax.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		read.imports[ours(imported)] = spec.Pos()
	}
	dir := "./" + path.Dir(name)
	in := t.byPath[dir]
	if in == nil {
		in = &pkg{path: dir}
		t.byPath[dir] = in
		t.packages = append(t.packages, in)
	}
	in.files = append(in.files, read)
	return nil
}

// ours turns an import path of the repository's modules into ./folder and leaves others as they are.
func ours(importPath string) string {
	if rest, found := strings.CutPrefix(importPath, modulePath+"/"); found {
		return "./" + rest
	}
	return importPath
}

// position is where pos lies, as file:line.
func (t *Tree) position(pos token.Pos) string {
	at := t.fset.Position(pos)
	return fmt.Sprintf("%s:%d", at.Filename, at.Line)
}

// reached returns what the non-test code of the package at start imports, itself or through packages of the tree, with
// the chain of packages that leads there.
func (t *Tree) reached(start *pkg) map[string][]string {
	chains := map[string][]string{}
	queue := []*pkg{start}
	via := map[string][]string{start.path: {start.path}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, f := range at.files {
			if f.test {
				continue
			}
			for imported := range f.imports {
				if _, seen := chains[imported]; seen {
					continue
				}
				chain := append(slices.Clone(via[at.path]), imported)
				chains[imported] = chain
				if next := t.byPath[imported]; next != nil {
					via[imported] = chain
					queue = append(queue, next)
				}
			}
		}
	}
	return chains
}
