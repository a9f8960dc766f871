// Package process is what stands around a service when it is a process of its own, the same for each: the settings that
// every process has and the topology ([Load]), then logs, traces and metrics, the ports, SIGHUP and an orderly end
// ([Process.Run]). What a service is made of is not its business: a service hands it a [Spec] before and a [Wiring] after.
//
//	func Main(ctx context.Context, environ []string) error {
//		var cfg Config
//		p, err := process.Load(process.Spec{Name: "wiggle-router", Declare: cfg.Declare, Check: cfg.Check}, environ)
//		if err != nil {
//			return err
//		}
//		return p.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) { ... })
//	}
//
// What it guarantees:
//
//   - Everything that is wrong with settings and topology is told at once (OPS-2).
//   - Processes may share an environment: a name that only another service reads is let through, by [Names]; one that
//     nobody reads is refused, with the nearest name there is.
//   - A port that is taken is told before anything else is done, and whatever fails, what was opened is closed and what
//     was measured is exported.
package process
