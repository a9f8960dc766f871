//go:build compose

package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	folder = "../../deploy/compose"
	// project keeps the test's containers and volumes apart from those of a stack that somebody works with.
	project = "wiggle-test"

	healthyTime = 3 * time.Minute
	downTime    = 2 * time.Minute
	lookEvery   = 500 * time.Millisecond
	logLines    = "100"
)

// Where the stack is published, unless the environment says otherwise: the addresses that the tutorial names.
const (
	routerURL     = "http://127.0.0.1:8420"
	otlpURL       = "http://127.0.0.1:4318"
	jaegerURL     = "http://127.0.0.1:16686"
	prometheusURL = "http://127.0.0.1:9090"
	grafanaURL    = "http://127.0.0.1:3000"
)

// stack is the stack of deploy/compose.
type stack struct {
	t       *testing.T
	began   time.Time
	environ []string
	grafana bool // its image can be had
}

func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{t: t, began: time.Now(), environ: append(os.Environ(), "COMPOSE_PROJECT_NAME="+project)}
	s.grafana = s.findGrafana()
	return s
}

// say tells how far the test is.
func (s *stack) say(format string, args ...any) {
	s.t.Helper()
	s.t.Logf("%6.1f s  %s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// run runs a command in the stack's folder and returns what it printed; its error holds the end of that.
func (s *stack) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = folder, s.environ
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// must is run for what the test cannot go on without.
func (s *stack) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(s.t.Context(), name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// down removes what the test has made, and before that shows the logs if it has failed.
func (s *stack) down() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), downTime)
	defer cancel()
	if s.t.Failed() {
		for _, args := range [][]string{{"ps"}, {"logs", "--no-color", "--tail", logLines}} {
			out, err := s.run(ctx, "./stack", args...)
			s.t.Log(out)
			if err != nil {
				s.t.Error(err)
			}
		}
	}
	s.say("taking it down")
	if _, err := s.run(ctx, "./stack", "down", "--volumes", "--remove-orphans"); err != nil {
		s.t.Error(err)
	}
}

// signIn begins a session of the administrator, with the password that ./stack has made.
func (s *stack) signIn() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, ".env"))
	if err != nil {
		s.t.Fatal(err)
	}
	var password string
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "WIGGLE_ADMIN_PASSWORD="); ok {
			password = value
		}
	}
	nobody, err := wiggle.Dial(routerURL, wiggle.WithAPIKey(""))
	if err != nil {
		s.t.Fatal(err)
	}
	defer nobody.Close()
	res, err := wigglev1connect.NewAuthServiceClient(nobody.Generated()).
		SignIn(s.t.Context(), &wigglev1.SignInRequest{Name: "admin", Password: password})
	if err != nil {
		s.t.Fatal(wiggle.AsError("sign in", err))
	}
	return res.GetToken()
}

// image is the image of a service as the stack's file and the environment have it.
func (s *stack) image(service string) string {
	_, config, _ := strings.Cut("\n"+s.must("./stack", "config"), "\nservices:\n")
	config = "\n" + config
	_, config, found := strings.Cut(config, "\n  "+service+":\n")
	for line := range strings.Lines(config) {
		if image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: "); ok && found {
			return image
		}
	}
	s.t.Fatalf("the stack has no image for %s", service)
	return ""
}

// container is what docker inspect tells of one.
type container struct {
	ID           string
	Name         string
	Image        string
	RestartCount int
	State        struct {
		Status string
		Health *struct{ Status string }
	}
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		SecurityOpt    []string
	}
}

// well tells whether it runs and, if it has a health check, is healthy.
func (c container) well() bool {
	return c.State.Status == "running" && (c.State.Health == nil || c.State.Health.Status == "healthy")
}

// containers are those of a service, of all without one.
func (s *stack) containers(ctx context.Context, service ...string) ([]container, error) {
	out, err := s.run(ctx, "./stack", append([]string{"ps", "-q"}, service...)...)
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	if out, err = s.run(ctx, "docker", append([]string{"inspect"}, ids...)...); err != nil {
		return nil, err
	}
	var list []container
	return list, json.Unmarshal([]byte(out), &list)
}

// awaitWell waits until so many containers of a service run and are healthy; of all services, however many, without one.
func (s *stack) awaitWell(count int, service ...string) []container {
	s.t.Helper()
	var found []container
	s.until(healthyTime, func(ctx context.Context) error {
		list, err := s.containers(ctx, service...)
		if err != nil {
			return err
		}
		if found = list; count > 0 && len(list) != count {
			return fmt.Errorf("%v has %d containers, want %d", service, len(list), count)
		}
		for _, c := range list {
			if !c.well() {
				return fmt.Errorf("%s is %+v", c.Name, c.State)
			}
		}
		return nil
	})
	return found
}

// until looks until there is no error any more, and ends the test if that takes too long.
func (s *stack) until(limit time.Duration, look func(ctx context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	pause := time.NewTicker(lookEvery)
	defer pause.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			s.t.Fatalf("after %v still: %v", limit, err)
		}
	}
}
