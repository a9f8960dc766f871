import { create } from "@bufbuild/protobuf";
import { durationFromMs, timestampNow, type Timestamp } from "@bufbuild/protobuf/wkt";
import { type Client, createClient, type Transport } from "@connectrpc/connect";

import type { Fault } from "./gen/wiggle/v1/fault_pb.js";
import { FailureSchema } from "./gen/wiggle/v1/instance_service_pb.js";
import { type Task, WorkerService } from "./gen/wiggle/v1/worker_service_pb.js";
import { encode } from "./payload.js";
import { pause, retry } from "./retry.js";

/** Handler does a task and returns its result. The signal says that the result is not wanted any more. */
export type Handler = (task: Task, signal: AbortSignal) => Promise<unknown>;

/** Refused is thrown by a handler when trying again is no use. */
export class Refused extends Error {
  override readonly name = "Refused";
}

export interface RunnerOptions {
  /** For people, and for the history of each step. No two workers may have the same. */
  readonly name: string;
  /** The queue to take steps from. */
  readonly queue: string;
  readonly workflow: string;
  /** By activity, which is the name of the step if the definition names no other. */
  readonly handlers: Readonly<Record<string, Handler>>;
  /** How many tasks at a time. */
  readonly concurrency: number;
  /** How long a task stays ours without a heartbeat. Another worker waits so long when this one dies. */
  readonly leaseMs: number;
  /** How long what is under way may take to finish when we are stopped. */
  readonly graceMs: number;
}

/** Held is a task that is ours. */
interface Held {
  readonly task: Task;
  readonly lost: AbortController;
  /** Until when the lease holds for sure, by performance.now(): the server's own clock is not ours to read. */
  trustedUntil: number;
}

const waitMs = 20_000;
const beatsPerLease = 3;
const leaseLost = "leaseLost";

/** Runner pulls tasks, has handlers do them, keeps their leases alive meanwhile, and reports. */
export class Runner {
  private readonly service: Client<typeof WorkerService>;
  private readonly options: RunnerOptions;
  private readonly underWay = new Map<Held, Promise<void>>();

  constructor(transport: Transport, options: RunnerOptions) {
    this.service = createClient(WorkerService, transport);
    this.options = options;
  }

  /** run works until it is told to stop, then finishes what it can within the grace and hands the rest back. */
  async run(stop: AbortSignal): Promise<void> {
    const beats = setInterval(() => void this.beat(), this.options.leaseMs / beatsPerLease);
    try {
      while (!stop.aborted) {
        if (this.underWay.size < this.options.concurrency) {
          await this.poll(stop);
        } else {
          await Promise.race(this.underWay.values());
        }
      }
      await this.finish();
    } finally {
      clearInterval(beats);
    }
  }

  /** poll waits for tasks and begins with them. A poll that is broken off leaves no task leased to nobody: the router sees to it. */
  private async poll(stop: AbortSignal): Promise<void> {
    const { name, queue, workflow, concurrency, leaseMs } = this.options;
    try {
      const sentAt = performance.now();
      const request = {
        worker: name,
        queues: [queue],
        workflows: [{ workflow }],
        maxTasks: concurrency - this.underWay.size,
        lease: durationFromMs(leaseMs),
        wait: durationFromMs(waitMs),
      };
      const answer = await retry(stop, () => this.service.pollTasks(request, { signal: stop, timeoutMs: 2 * waitMs }));
      for (const task of answer.tasks) {
        const held = { task, lost: new AbortController(), trustedUntil: sentAt + leaseMs };
        this.underWay.set(held, this.perform(held).finally(() => this.underWay.delete(held)));
      }
      if (answer.retryAfter) {
        await pause(answer.retryAfter, stop);
      }
    } catch (error) {
      if (!stop.aborted) {
        throw error;
      }
    }
  }

  /** perform does a task and tells how it went. It never throws: what cannot be told comes back when the lease runs out. */
  private async perform(held: Held): Promise<void> {
    const { task, lost } = held;
    const startedAt = timestampNow();
    try {
      const handler = this.options.handlers[task.activity];
      if (!handler) {
        throw new Refused(`this worker has no handler for ${task.activity}`);
      }
      await this.report(held, await handler(task, lost.signal), startedAt);
    } catch (error) {
      if (lost.signal.aborted) {
        return;
      }
      await this.fail(held, error, startedAt).catch((reason: unknown) => log(task, `its failure could not be told: ${reason}`));
    }
  }

  private async report({ task, lost }: Held, result: unknown, startedAt: Timestamp): Promise<void> {
    const request = {
      worker: this.options.name,
      reports: [{
        taskId: task.id,
        lease: task.lease,
        outcome: { case: "result" as const, value: encode(result) },
        startedAt,
        finishedAt: timestampNow(),
      }],
    };
    const answer = await retry(lost.signal, () => this.service.reportSteps(request, { signal: lost.signal }));
    const fault = answer.outcomes[0]?.fault;
    log(task, fault ? `not taken: ${fault.message}` : `done in attempt ${task.attempt}`);
  }

  private async fail({ task, lost }: Held, error: unknown, startedAt: Timestamp): Promise<void> {
    const { name, message, stack } = error instanceof Error ? error : new Error(String(error));
    const request = {
      worker: this.options.name,
      taskId: task.id,
      lease: task.lease,
      failure: create(FailureSchema, { type: name, message, stack: stack ?? "" }),
      nonRetryable: error instanceof Refused,
      startedAt,
      finishedAt: timestampNow(),
    };
    const answer = await retry(lost.signal, () => this.service.failTask(request, { signal: lost.signal }));
    log(task, `failed: ${message}; ${answer.willRetry ? "it will be tried again" : "it is not tried again"}`);
  }

  /** beat extends all leases. One that is gone, or that we could not extend in time, is not ours: its handler is told to stop. */
  private async beat(): Promise<void> {
    const sentAt = performance.now();
    const all = [...this.underWay.keys()];
    all.filter((held) => held.trustedUntil <= sentAt).forEach((held) => held.lost.abort());
    const ours = all.filter((held) => !held.lost.signal.aborted);
    if (ours.length === 0) {
      return;
    }
    const { name, leaseMs } = this.options;
    const extend = durationFromMs(leaseMs);
    try {
      const { outcomes } = await this.service.heartbeat({
        worker: name,
        beats: ours.map(({ task }) => ({ taskId: task.id, lease: task.lease, extend })),
      }, { timeoutMs: leaseMs / beatsPerLease });
      ours.forEach((held, i) => {
        const fault = outcomes[i]?.fault;
        if (!fault) {
          held.trustedUntil = sentAt + leaseMs;
        } else if (isLeaseLost(fault)) {
          held.lost.abort();
        }
      });
    } catch (error) {
      console.warn(`heartbeat: ${error}; the next one is soon`);
    }
  }

  /** finish waits for what is under way, and hands back what is not done in time: no attempt is spent on that. */
  private async finish(): Promise<void> {
    const grace = new AbortController();
    await Promise.race([Promise.all(this.underWay.values()), pause(this.options.graceMs, grace.signal)]);
    grace.abort();
    const rest = [...this.underWay.keys()];
    if (rest.length === 0) {
      return;
    }
    rest.forEach((held) => held.lost.abort());
    await this.service.releaseTasks({
      worker: this.options.name,
      tasks: rest.map(({ task }) => ({ taskId: task.id, lease: task.lease })),
    }, { timeoutMs: this.options.graceMs });
  }
}

function isLeaseLost(fault: Fault): boolean {
  return fault.kind.case === leaseLost;
}

function log(task: Task, what: string): void {
  console.log(`${task.instanceId} ${task.step}: ${what}`);
}
