//! Ranks and alphas of some modules: which of them a pattern means.

use crate::checkpoint::keys::Keys;
use crate::{Result, reserve};
use regex_automata::meta::{Config, Regex};

/// Most expressions among the patterns of an adapter. Names alone, of which there is often one for
/// each module, are no expressions.
const MAX_EXPRESSIONS: usize = 200;
/// Most bytes of one.
const EXPRESSION_BYTES: usize = 256 << 10;

/// `rank_pattern` or `alpha_pattern`: numbers by patterns, of which the first that fits counts.
#[derive(Debug)]
pub(super) struct Patterns {
    pub keys: Option<Keys>,
    /// Their names in order, with an expression for what is no name of a module.
    fits: Vec<(String, Option<Regex>)>,
}

impl Patterns {
    /// Of an adapter's configuration.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for what is no expression that can be read.
    pub fn read(config: &Keys, key: &str) -> Result<Patterns> {
        let (mut fits, mut expressions) = (Vec::new(), 0);
        let keys = config.object(key)?;
        for name in keys.iter().flat_map(Keys::names) {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let expression = match (name.chars().all(is_plain), &keys) {
                (false, Some(keys)) => {
                    expressions += 1;
                    if expressions > MAX_EXPRESSIONS {
                        let expected = format!("at most {MAX_EXPRESSIONS} expressions");
                        return Err(keys.wrong(name, expected));
                    }
                    let wrong = |why: String| {
                        let expected = format!("a module's name or regular expression ({why})");
                        keys.wrong(name, expected)
                    };
                    Some(expression(name).map_err(wrong)?)
                }
                _ => None,
            };
            reserve::push(
                "the patterns of an adapter",
                &mut fits,
                (name.into(), expression),
            )?;
        }
        Ok(Patterns { keys, fits })
    }

    /// The first pattern that fits a module: its whole name, or what is left of it behind a dot.
    pub fn fitting(&self, module: &str) -> Option<&str> {
        let fits = |(name, expression): &&(String, Option<Regex>)| match expression {
            Some(expression) => expression.is_match(module),
            None => {
                let head = module.strip_suffix(name.as_str());
                head.is_some_and(|head| head.is_empty() || head.ends_with('.'))
            }
        };
        let (name, _) = self.fits.iter().find(fits)?;
        Some(name)
    }
}

/// As peft puts it together. Where its expression is another one in Rust, it cannot be read.
fn expression(pattern: &str) -> std::result::Result<Regex, String> {
    let config = Config::new()
        .nfa_size_limit(Some(EXPRESSION_BYTES))
        .hybrid(false)
        .dfa(false)
        .onepass(false)
        .backtrack(false);
    let built = Regex::builder()
        .configure(config)
        .build(&format!("^(?:.*\\.)?(?:{pattern})$"));
    built.map_err(|error| match error.syntax_error() {
        Some(error) => error.to_string().lines().last().unwrap_or("").to_owned(),
        None => error.to_string(),
    })
}
