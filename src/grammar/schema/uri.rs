//! URIs as far as references between schemas need them (RFC 3986).

/// A URI without its fragment, split into parts. The parts are unchanged.
struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(uri: &'a str) -> Self {
        let is_scheme = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let (scheme, rest) = match uri.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), rest),
            _ => (None, uri),
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(behind) => {
                let end = behind.find('/').unwrap_or(behind.len());
                (Some(&behind[..end]), &behind[end..])
            }
            None => (None, rest),
        };
        Self {
            scheme,
            authority,
            path,
            query,
        }
    }

    fn text(&self, path: &str) -> String {
        let mut text = String::new();
        if let Some(scheme) = self.scheme {
            text = format!("{scheme}:");
        }
        if let Some(authority) = self.authority {
            text += "//";
            text += authority;
        }
        text += path;
        if let Some(query) = self.query {
            text += "?";
            text += query;
        }
        text
    }
}

/// The URI that `reference` means inside a resource whose URI is `base`. Neither has a fragment.
pub(super) fn join(base: &str, reference: &str) -> String {
    if reference.is_empty() {
        return base.into();
    }
    let (base, own) = (Parts::of(base), Parts::of(reference));
    if own.scheme.is_some() {
        return own.text(&without_dots(own.path));
    }
    let scheme = base.scheme;
    if own.authority.is_some() {
        return Parts { scheme, ..own }.text(&without_dots(own.path));
    }
    let authority = base.authority;
    if own.path.is_empty() {
        let query = own.query.or(base.query);
        return Parts { query, ..base }.text(base.path);
    }
    let path = match own.path.starts_with('/') {
        true => own.path.to_string(),
        false if base.path.is_empty() && authority.is_some() => format!("/{}", own.path),
        false => {
            let directory = base.path.rfind('/').map_or(0, |at| at + 1);
            format!("{}{}", &base.path[..directory], own.path)
        }
    };
    let whole = Parts {
        scheme,
        authority,
        ..own
    };
    whole.text(&without_dots(&path))
}

/// A path without the segments `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = path.split('/').collect();
    for (i, &segment) in segments.iter().enumerate() {
        let is_last = i + 1 == segments.len();
        match segment {
            "." | ".." => {
                // The empty segment in front of the first slash is never removed.
                if segment == ".." && (kept.len() > 1 || kept.first().is_some_and(|s| s != &"")) {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    kept.join("/")
}

/// `text` with each `%` and two hexadecimal digits replaced by their byte. `None` if the result is
/// not UTF-8.
pub(super) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = |byte: &u8| (*byte as char).to_digit(16);
        rest = behind;
        match (*first, behind) {
            (b'%', [high, low, behind @ ..]) if hex(high).is_some() && hex(low).is_some() => {
                bytes.push((hex(high)? * 16 + hex(low)?) as u8);
                rest = behind;
            }
            (byte, _) => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::{decoded, join};

    /// The examples of RFC 3986, section 5.4, without fragments.
    #[test]
    fn references_are_joined_as_the_rfc_has_it() {
        let base = "http://a/b/c/d;p?q";
        for (reference, whole) in [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("g;x=1/../y", "http://a/b/c/y"),
        ] {
            assert_eq!(join(base, reference), whole, "{reference}");
        }
        assert_eq!(join("http://a", "b"), "http://a/b");
        assert_eq!(join("T0", "T1"), "T1");
        assert_eq!(join("urn:example:root", ""), "urn:example:root");
        assert_eq!(join("", "a/b.json"), "a/b.json");
    }

    #[test]
    fn bytes_are_decoded() {
        assert_eq!(decoded("a%20b%c3%A4%%4").unwrap(), "a bä%%4");
        assert_eq!(decoded("%ff"), None);
    }
}
