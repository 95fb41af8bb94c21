//! What enters a sentence from outside: names of files and tensors, and what files say. Whoever
//! wrote them must not be able to end a sentence early, to begin a line of a log, or to push the
//! numbers out of it. So control characters are escaped, and what is long is shortened in its
//! middle.

use std::path::Path;

/// Most bytes of a path, a name and a value in a sentence: a path, a name and two values fit into
/// `llama_error.message` together.
const PATH: usize = 320;
const NAME: usize = 160;
const VALUE: usize = 200;
/// Most bytes of a sentence, or of its rest after a path, that has been put together elsewhere.
const TEXT: usize = 640;

/// A path.
pub fn path(path: &Path) -> String {
    shown(&path.to_string_lossy(), PATH)
}

/// The name of a tensor, a key, an entry of an archive.
pub fn name(name: &str) -> String {
    shown(name, NAME)
}

/// What was expected or found.
pub fn value(value: &str) -> String {
    shown(value, VALUE)
}

/// Words of others: of the system, a driver, a library, a panic.
pub fn text(text: &str) -> String {
    shown(text, TEXT)
}

/// How `c` is written where it must not act: C0, DEL and C1, line and paragraph separators, and
/// what turns the direction of text around.
fn escaped(c: char) -> Option<String> {
    match c {
        '\0' => Some("\\0".into()),
        '\t' => Some("\\t".into()),
        '\n' => Some("\\n".into()),
        '\r' => Some("\\r".into()),
        '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{61c}'
        | '\u{feff}' => Some(c.escape_unicode().collect()),
        c if c.is_control() => Some(c.escape_unicode().collect()),
        _ => None,
    }
}

fn shown(text: &str, most: usize) -> String {
    const GAP: &str = "...";
    let width = |c: char| escaped(c).map_or(c.len_utf8(), |e| e.len());
    let mut shown = String::new();
    let mut show = |part: &str| {
        for c in part.chars() {
            match escaped(c) {
                Some(escape) => shown.push_str(&escape),
                None => shown.push(c),
            }
        }
    };
    // Where the characters from the front, or the back, have filled half of the room.
    let full = || {
        let mut room = (most - GAP.len()) / 2;
        move |&(_, c): &(usize, char)| {
            let left = room.checked_sub(width(c));
            room = left.unwrap_or(room);
            left.is_none()
        }
    };
    let fits = text.len() <= most && text.chars().map(width).sum::<usize>() <= most;
    if fits {
        show(text);
        return shown;
    }
    let head = text.char_indices().find(full());
    let tail = text.char_indices().rev().find(full());
    let head = head.map_or(text.len(), |(at, _)| at);
    let tail = tail.map_or(0, |(at, c)| at + c.len_utf8());
    show(&text[..head]);
    show(GAP);
    show(&text[tail.max(head)..]);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_escaped() {
        let all = "a\0b\nc\td\re\u{1b}[31mf\u{7f}g\u{85}h\u{202e}i\u{2028}j é 漢 \\ \"";
        assert_eq!(
            text(all),
            "a\\0b\\nc\\td\\re\\u{1b}[31mf\\u{7f}g\\u{85}h\\u{202e}i\\u{2028}j é 漢 \\ \""
        );
    }

    #[test]
    fn long_names_lose_their_middle() {
        let long = format!("head{}tail", "x".repeat(10_000));
        let short = name(&long);
        assert_eq!(short.len(), NAME - 1);
        assert!(short.starts_with("headxxx") && short.ends_with("xxxtail"));
        assert!(short.contains("x...x"));
        assert_eq!(name(&"y".repeat(NAME)), "y".repeat(NAME));
        // Neither a character nor an escape is cut in two.
        for repeated in ["é", "漢", "\n", "\u{202e}"] {
            for most in 20..60 {
                let short = shown(&repeated.repeat(100), most);
                assert!(short.len() <= most, "{short}");
                let unit = escaped(repeated.chars().next().unwrap());
                let unit = unit.unwrap_or_else(|| repeated.into());
                assert_eq!(short.replace(&unit, ""), "...");
            }
        }
    }
}
