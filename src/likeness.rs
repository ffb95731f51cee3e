//! Suggests known names for a misspelt one.

/// Names longer than this are like no other.
const NAME_BYTES_MAX: usize = 255;

/// Names that are suggested.
const SUGGESTED_MAX: usize = 3;

/// Characters in which a suggested name may differ.
const DIFFERENCES_MAX: usize = 6;

/// Fewer characters are the beginning of too many names.
const BEGINNING_CHARS_MIN: usize = 3;

/// The names that are most like one, the most like it first.
pub(crate) fn like<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if wrong.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let wanted = lower(wrong);
    // Of a short name less may be wrong.
    let most = (wanted.len() / 3).clamp(1, DIFFERENCES_MAX);
    let is_known = |name: &&str| (1..=NAME_BYTES_MAX).contains(&name.len()) && *name != wrong;
    let known = names.into_iter().filter(is_known);
    let mut found: Vec<(usize, &str)> = known
        .filter_map(|name| {
            let far = Some(distance(&wanted, &lower(name))).filter(|far| *far <= most);
            // The right name in another folder is about as near as a slip of the pen.
            let elsewhere = (!wrong.is_empty() && last(name) == last(wrong)).then_some(1);
            // So is the beginning of a name: its ending was left out.
            let begun = (wanted.len() >= BEGINNING_CHARS_MIN && is_begun_by(name, &wanted))
                .then_some(DIFFERENCES_MAX);
            far.into_iter().chain(elsewhere).chain(begun).min().map(|far| (far, name))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(SUGGESTED_MAX).map(|(_, name)| name).collect()
}

/// Whether a name without its folders begins so, or all of it.
fn is_begun_by(name: &str, beginning: &[char]) -> bool {
    lower(name).starts_with(beginning) || lower(last(name)).starts_with(beginning)
}

/// `; did you mean ...?`, if known names are near.
pub(crate) fn did_you_mean<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> =
        like(wrong, names).into_iter().map(|name| format!("{name:?}")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [many @ .., last] => format!("; did you mean {} or {last}?", many.join(", ")),
    }
}

/// A name without its folders.
fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn lower(text: &str) -> Vec<char> {
    text.to_lowercase().chars().collect()
}

/// How many characters have to be put in, left out, replaced or exchanged with the next one to make
/// one name of the other.
fn distance(from: &[char], to: &[char]) -> usize {
    // The row of the character before the last, that of the last, and the one that is filled.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (place, char) in from.iter().enumerate() {
        let mut row = vec![place + 1];
        for (at, other) in to.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX - 1);
            let replaced = cell(&last, at) + usize::from(char != other);
            let mut least = replaced.min(cell(&last, at + 1) + 1).min(cell(&row, at) + 1);
            let pair = |of: &[char], at: usize| Some((*of.get(at.checked_sub(1)?)?, *of.get(at)?));
            if pair(from, place).is_some_and(|(a, b)| pair(to, at) == Some((b, a))) {
                least = least.min(cell(&before, at - 1) + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_like_a_wrong_one_are_found_the_most_like_it_first() {
        let names = ["models-v1", "models-v2", "tables", "large.bin", "weights/model.bin"];
        assert_eq!(like("modls-v2", names), ["models-v2", "models-v1"]);
        assert_eq!(like("Tables", names), ["tables"]);
        assert_eq!(like("model.bin", names), ["weights/model.bin"]);
        assert_eq!(like("data/model.bin", names), ["weights/model.bin"]);
        assert_eq!(like("something-else", names), [""; 0]);
        assert_eq!(like("", names), [""; 0]);
        assert_eq!(like("x", ["", "y"]), ["y"], "nothing is no name");
        assert_eq!(like("Large", names), ["large.bin"], "its beginning");
        assert_eq!(like("weig", names), ["weights/model.bin"]);
        assert_eq!(like("la", names), [""; 0]);
        assert_eq!(like(&"x".repeat(1_000), names), [""; 0]);
        assert_eq!(
            like("calcc", ["calcA", "calcB", "CALCC", "calcA"]),
            ["CALCC", "calcA", "calcB"]
        );
        assert_eq!(like("x", ["x"]), [""; 0], "it is not wrong");
        assert_eq!(distance(&lower("kitten"), &lower("sitting")), 3);
        assert_eq!(distance(&[], &['a', 'b']), 2);
        assert_eq!(distance(&lower("clac"), &lower("calc")), 1, "two in the wrong order");
        assert_eq!(distance(&lower("ba"), &lower("ab")), 1);
        assert_eq!(like("clac", ["calc"]), ["calc"]);
    }

    #[test]
    fn suggestions_read_as_a_question() {
        let known = ["leaders", "client_id"];
        assert_eq!(did_you_mean("laeders", known), "; did you mean \"leaders\"?");
        assert_eq!(did_you_mean("client-id", known), "; did you mean \"client_id\"?");
        assert_eq!(did_you_mean("bbb", ["abb", "bba"]), "; did you mean \"abb\" or \"bba\"?");
        assert_eq!(did_you_mean("token", known), "");
    }
}
