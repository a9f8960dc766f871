//go:build compose

package compose

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

// maxImageBytes is how large an image of ours may be.
const maxImageBytes = 60_000_000

// checkImages holds that Wiggle's images have one program and nobody's shell, run as nobody in particular, and that their
// containers cannot write or gain anything (7 of issue 5).
func (s *stack) checkImages() {
	s.t.Helper()
	for _, service := range services {
		list, err := s.containers(s.t.Context(), service)
		if err != nil || len(list) == 0 {
			s.t.Fatalf("%s has no container: %v", service, err)
		}
		for _, c := range list {
			if h := c.HostConfig; !h.ReadonlyRootfs || !slices.Contains(h.CapDrop, "ALL") ||
				!slices.ContainsFunc(h.SecurityOpt, func(o string) bool { return strings.HasPrefix(o, "no-new-privileges") }) {
				s.t.Errorf("%s may more than it has to: %+v", c.Name, h)
			}
			if c.State.Health == nil {
				s.t.Errorf("%s has no health check", c.Name)
			}
		}
		facts := strings.Fields(s.must("docker", "image", "inspect", "--format", "{{.Size}} {{.Config.User}}", list[0].Image))
		size, err := strconv.ParseInt(facts[0], 10, 64)
		if err != nil || size > maxImageBytes {
			s.t.Errorf("the image of %s has %d bytes, %v", service, size, err)
		}
		if len(facts) < 2 || strings.HasPrefix(facts[1], "0") || strings.HasPrefix(facts[1], "root") {
			s.t.Errorf("the image of %s runs as %q", service, facts[1:])
		}
		programs, err := programs(s.t.Context(), list[0].ID)
		if err != nil || !slices.Equal(programs, []string{"service"}) {
			s.t.Errorf("the image of %s has the programs %q, %v", service, programs, err)
		}
		s.say("image of %s: %.1f MB, user %s, nothing to run but %s", service, float64(size)/1e6, facts[1], programs)
	}
}

// programs lists the files in a container that can be run, and links, which may lead to one.
func programs(ctx context.Context, id string) (found []string, err error) {
	cmd := exec.CommandContext(ctx, "docker", "export", id)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for r := tar.NewReader(out); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, cmd.Wait())
		}
		name := path.Clean(header.Name)
		link := header.Typeflag == tar.TypeSymlink && name != "etc/mtab" // Docker's own
		// An empty file is where Docker mounts something.
		if link || header.Typeflag == tar.TypeReg && header.Mode&0o111 != 0 && header.Size > 0 {
			found = append(found, name)
		}
	}
	_, err = io.Copy(io.Discard, out)
	return found, errors.Join(err, cmd.Wait())
}
