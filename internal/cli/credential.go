package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/credentials"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	envAPIKey     = "WIGGLE_API_KEY"
	envAPIKeyFile = "WIGGLE_API_KEY_FILE"
)

// credentialSource is where what a command shows to the server comes from.
type credentialSource string

const (
	sourceNone    credentialSource = ""
	sourceFlag    credentialSource = "--api-key-file"
	sourceKey     credentialSource = envAPIKey
	sourceFile    credentialSource = envAPIKeyFile
	sourceSession credentialSource = "session"
	// sourceGiven is what the command itself has given.
	sourceGiven credentialSource = "given"
)

func (p *Program) sessions() *credentials.Store { return credentials.NewStore(p.ConfigDir) }

// credential is who the program says that it is: the flag goes before the environment, and that before the session of
// `wiggle login`.
func (p *Program) credential(cmd *cobra.Command) (wiggle.ClientOption, error) {
	key, _ := p.getenv(envAPIKey)
	file, _ := p.getenv(envAPIKeyFile)
	switch {
	case p.apiKeyFile != "":
		p.shown = sourceFlag
		return wiggle.WithAPIKeyFile(p.apiKeyFile), nil
	case key != "" && file != "":
		return nil, shell.Usage(cmd, fmt.Errorf("%s and %s are both set: set one of them", envAPIKey, envAPIKeyFile))
	case key != "":
		p.shown = sourceKey
		return wiggle.WithAPIKey(key), nil
	case file != "":
		p.shown = sourceFile
		return wiggle.WithAPIKeyFile(file), nil
	}
	session, ok, err := p.sessions().Find(p.serverURL())
	if err != nil {
		return nil, err
	}
	if ok {
		p.shown = sourceSession
	}
	return wiggle.WithAPIKey(session.Token), nil
}

// signInHint says what to do about a call that the server does not know the caller of.
func (p *Program) signInHint() string {
	const ways = "sign in with wiggle login, or set " + envAPIKey + " to a key (wiggle keys create makes one)"
	switch p.shown {
	case sourceNone:
		return ways
	case sourceSession:
		return "the session at " + p.serverURL() + " has ended: sign in again with wiggle login"
	case sourceGiven:
		return ""
	default:
		return fmt.Sprintf("the key of %s was revoked, has expired or is another cluster's: use another, or %s without it", p.shown, ways)
	}
}

// permissionHint says what to do about a call that the caller may not make.
func permissionHint(e *wiggle.Error) string {
	if e.Permission == "" {
		return "wiggle whoami shows what you may do, and wiggle roles list which roles allow it"
	}
	who, way := "you", "a role with it"
	if principal := e.Fault().GetPermissionMissing().GetPrincipal(); principal != "" {
		who = principal
	}
	if name, ok := strings.CutPrefix(who, "user/"); ok {
		way = "a role with it (wiggle users update " + name + " --role ROLE)"
	} else if strings.HasPrefix(who, "key/") {
		way = "a key with it (wiggle keys create NAME --permission " + e.Permission + ")"
	}
	return fmt.Sprintf("%s lacks the permission %s: who has it and may manage accounts can give %s; wiggle whoami shows what you may do",
		who, e.Permission, way)
}
