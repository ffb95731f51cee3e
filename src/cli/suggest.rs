//! What somebody meant who wrote a word wrong.

/// The longest word that is compared.
const WORD_CHARS_MAX: usize = 64;

/// The known word that is nearest to a wrong one, if one is near.
pub(crate) fn nearest<'a>(
    wrong: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let wrong: Vec<char> = wrong.chars().take(WORD_CHARS_MAX + 1).collect();
    if wrong.len() > WORD_CHARS_MAX {
        return None;
    }
    // Of a short word less may be wrong.
    let most = (wrong.len() / 3).clamp(1, 3);
    let near = known.into_iter().map(|word| (distance(&wrong, word), word));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, word)| word)
}

/// How many characters have to be added, taken away or changed to make one word the other.
fn distance(from: &[char], to: &str) -> usize {
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (above, there) in to.chars().take(WORD_CHARS_MAX).enumerate() {
        let mut next = vec![above + 1];
        for (here, (before, over)) in from.iter().zip(row.iter().zip(row.iter().skip(1))) {
            let changed = before + usize::from(*here != there);
            let left = next.last().map_or(changed, |left| left + 1);
            next.push(changed.min(over + 1).min(left));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// `; did you mean ...?`, if a known word is near.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, known).map(|word| format!("; did you mean {word:?}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_and_none_that_is_far() {
        let known = ["leaders", "client_id"];
        for (wrong, meant) in [
            ("leader", Some("leaders")),
            ("laeders", Some("leaders")),
            ("clientid", Some("client_id")),
            ("client-id", Some("client_id")),
            ("token", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, known), meant, "{wrong}");
        }
        assert_eq!(nearest(&"l".repeat(1_000), known), None);
        assert_eq!(did_you_mean("curent", ["current"]), "; did you mean \"current\"?");
        assert_eq!(did_you_mean("x", ["current"]), "");
    }
}
