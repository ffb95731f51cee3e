//! Fast passes over JSON text that decide nothing but where something is: the end of a run of
//! ordinary characters, the depth of the nesting. They hold no state and do not care whether the
//! text is valid. The reader and the content stream use them.

use crate::model::limits::NEST_DEPTH_MAX;

/// How many bytes come before the next quote or backslash.
pub(crate) fn plain_run(bytes: &[u8]) -> usize {
    // Looked at block by block without a branch inside a block, which the compiler turns into
    // vector instructions; with a closure that may stop early it does not, and contents pass at a
    // fifth of the speed.
    let (blocks, _) = bytes.as_chunks::<64>();
    let mut clean = 0_usize;
    for block in blocks {
        let mut hit = 0_u8;
        for byte in block {
            hit |= u8::from(*byte == b'"') | u8::from(*byte == b'\\');
        }
        if hit != 0 {
            break;
        }
        clean = clean.saturating_add(block.len());
    }
    let tail = bytes.get(clean..).unwrap_or_default();
    let special = tail.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    clean.saturating_add(special.unwrap_or(tail.len()))
}

/// How deep `text` nests, or any smaller number while that is certainly within the limit.
pub(super) fn nest_depth(text: &str) -> u32 {
    // A text cannot nest deeper than it has openers, and counting those is one quick pass. Nearly
    // every payload is done with that; only one with very many files or entries is walked.
    if openers(text.as_bytes()) <= u64::from(NEST_DEPTH_MAX) {
        return 0;
    }
    let (mut depth, mut deepest, mut in_string) = (0_u32, 0_u32, false);
    let mut rest = text.as_bytes();
    while let Some(&byte) = rest.first() {
        let mut used = 1_usize;
        if in_string {
            let run = plain_run(rest);
            // A backslash takes the next byte with it, so that an escaped quote does not end the
            // string.
            let escape = rest.get(run) == Some(&b'\\');
            in_string = escape;
            used = run.saturating_add(if escape { 2 } else { 1 });
        } else {
            match byte {
                b'"' => in_string = true,
                b'{' | b'[' => depth = depth.saturating_add(1),
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        deepest = deepest.max(depth);
        rest = rest.get(used..).unwrap_or_default();
    }
    deepest
}

fn openers(bytes: &[u8]) -> u64 {
    // Counted in blocks that fit a byte, for the same reason as above. `{` and `[` differ in one
    // bit only.
    bytes.chunks(64).fold(0, |all, block| {
        let mut openers = 0_u8;
        for byte in block {
            openers = openers.wrapping_add(u8::from(*byte | 0x20 == b'{'));
        }
        all.saturating_add(openers.into())
    })
}
