import { randomBytes } from "node:crypto";

const alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
const length = 26;

/** newUlid mints a ulid, 48 bits of time and 80 that are random, in Crockford's base 32. */
export function newUlid(nowMs = Date.now()): string {
  let bits = (BigInt(nowMs) << 80n) | BigInt(`0x${randomBytes(10).toString("hex")}`);
  let text = "";
  for (let i = 0; i < length; i++) {
    text = alphabet.charAt(Number(bits & 31n)) + text;
    bits >>= 5n;
  }
  return text;
}
