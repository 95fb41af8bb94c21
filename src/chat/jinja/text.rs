//! Texts that know which of their bytes the template wrote.

use super::fault::Result;
use super::limits::{Meter, no_memory};
use crate::tokenizer::Run;
use std::rc::Rc;

/// A text of the evaluator. It is shared, is never changed, and is at most as long as the meter
/// allowed.
#[derive(Clone, Debug)]
pub struct Text {
    body: Rc<Body>,
    /// Python's `Markup`, which escapes what is added to it.
    is_markup: bool,
}

#[derive(Debug)]
struct Body {
    text: String,
    /// The runs are together as long as the text. Neighbours differ, and none is empty.
    runs: Runs,
    ascii: bool,
}

#[derive(Debug)]
enum Runs {
    All(bool),
    Several(Vec<Run>),
}

impl Text {
    /// A text of one origin that has been charged.
    pub fn of(text: String, from_template: bool) -> Text {
        let ascii = text.is_ascii();
        let runs = Runs::All(from_template);
        let body = Rc::new(Body { text, runs, ascii });
        let is_markup = false;
        Text { body, is_markup }
    }

    /// The same text, as Python's `Markup` or not.
    pub fn marked(self, is_markup: bool) -> Text {
        Text { is_markup, ..self }
    }

    /// Whether this text escapes what is added to it.
    pub fn is_markup(&self) -> bool {
        self.is_markup
    }

    /// A copy of `text`, charged.
    pub fn copy(meter: &mut Meter<'_>, text: &str, from_template: bool) -> Result<Text> {
        let mut copy = String::new();
        meter.write(&mut copy, text)?;
        Ok(Text::of(copy, from_template))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.body.text
    }

    /// Whether all of the text is the template's. An empty text is, too.
    pub fn is_templates(&self) -> bool {
        match &self.body.runs {
            Runs::All(from_template) => *from_template || self.body.text.is_empty(),
            Runs::Several(_) => false,
        }
    }

    /// The number of characters, as Python's `len` counts them.
    pub fn chars(&self, meter: &mut Meter<'_>) -> Result<usize> {
        if self.body.ascii {
            return Ok(self.body.text.len());
        }
        meter.look_at(self.body.text.len())?;
        Ok(self.body.text.chars().count())
    }

    /// The byte at which character `n` begins, or the end.
    pub fn byte_of(&self, meter: &mut Meter<'_>, n: usize) -> Result<usize> {
        let text = &self.body.text;
        if self.body.ascii {
            return Ok(n.min(text.len()));
        }
        meter.look_at(n.saturating_mul(4).min(text.len()))?;
        Ok(text.char_indices().nth(n).map_or(text.len(), |(at, _)| at))
    }

    /// The part between two bytes, which are at borders of characters. It keeps its origins.
    pub fn slice(&self, meter: &mut Meter<'_>, from: usize, to: usize) -> Result<Text> {
        if from == 0 && to == self.body.text.len() {
            return Ok(self.clone());
        }
        let mut part = Builder::default();
        part.push_slice(meter, self, from, to)?;
        Ok(part.finish().marked(self.is_markup))
    }

    /// `part`, which is borrowed from this text, as a text of its own with its origins.
    pub fn part(&self, meter: &mut Meter<'_>, part: &str) -> Result<Text> {
        let from = part.as_ptr() as usize - self.body.text.as_ptr() as usize;
        self.slice(meter, from, from + part.len())
    }

    /// A text that is made of this text and of `others`. It is the template's if all of these are.
    pub fn derived(&self, text: String, others: &[&Text]) -> Text {
        let templates = self.is_templates() && others.iter().all(|other| other.is_templates());
        Text::of(text, templates).marked(self.is_markup)
    }
}

/// A text that grows.
#[derive(Debug, Default)]
pub struct Builder {
    text: String,
    runs: Vec<Run>,
}

impl Builder {
    /// How many bytes the text has.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Appends bytes of one origin.
    pub fn push(&mut self, meter: &mut Meter<'_>, text: &str, from_template: bool) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        meter.write(&mut self.text, text)?;
        match self.runs.last_mut() {
            Some(run) if run.from_template == from_template => run.len += text.len(),
            _ => {
                let len = text.len();
                let run = Run { len, from_template };
                meter.push(&mut self.runs, run)?;
            }
        }
        Ok(())
    }

    /// Appends bytes with the origins that they have in `text`.
    pub fn push_text(&mut self, meter: &mut Meter<'_>, text: &Text) -> Result<()> {
        self.push_slice(meter, text, 0, text.as_str().len())
    }

    fn push_slice(
        &mut self,
        meter: &mut Meter<'_>,
        text: &Text,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let runs = match &text.body.runs {
            Runs::All(from_template) => {
                return self.push(meter, &text.body.text[from..to], *from_template);
            }
            Runs::Several(runs) => runs,
        };
        meter.look_at(runs.len() * size_of::<Run>())?;
        let mut start = 0;
        for run in runs {
            let end = start + run.len;
            let (a, b) = (start.max(from), end.min(to));
            if a < b {
                self.push(meter, &text.body.text[a..b], run.from_template)?;
            }
            start = end;
        }
        Ok(())
    }

    /// The text as a value.
    pub fn finish(self) -> Text {
        let runs = match self.runs.as_slice() {
            [] => Runs::All(true),
            [run] => Runs::All(run.from_template),
            _ => Runs::Several(self.runs),
        };
        let text = self.text;
        let ascii = text.is_ascii();
        let body = Rc::new(Body { text, runs, ascii });
        let is_markup = false;
        Text { body, is_markup }
    }

    /// The text and its runs.
    pub fn into_parts(self) -> (String, Vec<Run>) {
        (self.text, self.runs)
    }
}

/// A text of the template's for numbers and names. Nobody gets it before it is charged.
pub fn short(text: impl Into<String>) -> Text {
    Text::of(text.into(), true)
}

/// A `String` with room for `n` bytes that have been charged.
pub fn room(n: usize) -> Result<String> {
    let mut text = String::new();
    text.try_reserve(n).map_err(|_| no_memory(n))?;
    Ok(text)
}

/// Appends characters, which have been charged, whether or not `text` has room for them.
pub fn extend(text: &mut String, more: impl IntoIterator<Item = char>) -> Result<()> {
    for c in more {
        if text.capacity() - text.len() < c.len_utf8() {
            let bytes = 2 * text.len();
            text.try_reserve(c.len_utf8())
                .map_err(|_| no_memory(bytes))?;
        }
        text.push(c);
    }
    Ok(())
}
