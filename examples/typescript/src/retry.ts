import { setTimeout as sleep } from "node:timers/promises";

import type { Duration } from "@bufbuild/protobuf/wkt";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";

import { FaultSchema } from "./gen/wiggle/v1/fault_pb.js";

const firstPauseMs = 100;
const longestPauseMs = 5_000;

/** passing are the codes of what may be over in a moment. */
const passing = new Set([Code.Unavailable, Code.ResourceExhausted, Code.DeadlineExceeded]);
/** broken are those of a connection that broke, if they come without a Fault: each error of the server carries one. */
const broken = new Set([Code.Aborted, Code.Canceled, Code.Internal, Code.Unknown]);

/**
 * retry repeats a call that is safe to repeat until it succeeds, fails for good, or the signal says stop. Between tries it
 * waits as long as the server asked for, or else twice as long as before, never all clients at the same time.
 */
export async function retry<T>(signal: AbortSignal, call: () => Promise<T>): Promise<T> {
  for (let pauseMs = firstPauseMs; ; pauseMs = Math.min(2 * pauseMs, longestPauseMs)) {
    try {
      return await call();
    } catch (reason) {
      const error = ConnectError.from(reason);
      const [fault] = error.findDetails(FaultSchema);
      if (signal.aborted || !(passing.has(error.code) || (broken.has(error.code) && !fault))) {
        throw error;
      }
      await pause(fault?.retryAfter ?? pauseMs * (0.5 + Math.random() / 2), signal);
    }
  }
}

/** pause waits until the time is over or the signal says stop. It does not say which. */
export async function pause(time: Duration | number, signal: AbortSignal): Promise<void> {
  const ms = typeof time === "number" ? time : durationMs(time);
  await sleep(ms, undefined, { signal }).catch(() => undefined);
}
