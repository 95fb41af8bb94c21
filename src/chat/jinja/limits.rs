//! What a template may use, and the meter that counts it.
//!
//! A template is a program that came with a download. It ends within [`MAX_STEPS`] steps and has
//! made at most [`MADE`] bytes, plus [`MADE_PER_INPUT`] for each byte of its input. What is made
//! counts when it is made and is never given back, so a loop that makes and drops texts ends too.

use super::fault::{Fault, Kind, Result};
use crate::Cancel;

/// Most bytes of a template.
pub const MAX_TEMPLATE: usize = 1 << 20;
/// Most levels of brackets and statements in a template, and of macros that call each other.
pub const MAX_NESTING: usize = 200;
/// Most levels of expressions and statements that are being evaluated at once. A level takes less
/// than a kilobyte of stack; one of [`MAX_NESTING`] takes the parser five.
pub const MAX_DEPTH: usize = 600;
/// Most levels of lists in lists. Data have at most 128, which is serde_json's limit.
pub const MAX_VALUE_DEPTH: u32 = 400;
/// Most steps: one for each expression, statement and element, one for each [`STEP_BYTES`] that a
/// text operation looks at.
pub const MAX_STEPS: u64 = 5_000_000;
/// Bytes that a text operation looks at for one step.
pub const STEP_BYTES: usize = 256;
/// Bytes that are made for nothing.
pub const MADE: u64 = 64 << 20;
/// Bytes that are made for each byte of messages, tools and variables.
pub const MADE_PER_INPUT: u64 = 16;
/// Most bytes of what is rendered.
pub const MAX_OUTPUT: usize = 64 << 20;
/// Most elements of a `range`, as in jinja2's sandbox.
pub const MAX_RANGE: i128 = 100_000;

/// Most arguments of a call that are given by name. They are compared with each other.
pub const MAX_NAMED: usize = 1000;

/// Steps between two looks at the cancel flag.
const LOOK: u64 = 1000;
/// Names that are passed on the way to one of them without a step of their own.
const NAMES_FREE: usize = 16;
/// What a name on the way counts as, in bytes that are looked at.
const NAME_BYTES: usize = 16;

// Values are reference-counted, and stable Rust cannot allocate such an object fallibly. So memory
// is asked for and given back before objects have taken so much.
const UNASKED: usize = 1 << 20;
/// At least what a call of `make` comes with: a text or a list and what counts its references.
const OBJECT_BYTES: usize = 256;
/// More than objects take until memory is asked for again.
const HEADROOM: usize = 2 * UNASKED;

/// Counts steps and bytes down.
pub struct Meter<'c> {
    steps: u64,
    /// Look at the flag when `steps` has come down to this.
    look: u64,
    bytes: u64,
    all_bytes: u64,
    /// What may be made until memory is asked for.
    unasked: usize,
    cancel: Option<&'c Cancel>,
}

impl<'c> Meter<'c> {
    /// A full meter for `input` bytes of messages, tools and variables.
    pub fn new(input: usize, cancel: Option<&'c Cancel>) -> Self {
        let bytes = MADE + MADE_PER_INPUT * input as u64;
        Meter {
            steps: MAX_STEPS,
            look: MAX_STEPS,
            bytes,
            all_bytes: bytes,
            unasked: 0,
            cancel,
        }
    }

    /// Steps taken and bytes made so far.
    pub fn used(&self) -> (u64, u64) {
        (MAX_STEPS - self.steps, self.all_bytes - self.bytes)
    }

    /// One step.
    #[inline]
    pub fn step(&mut self) -> Result<()> {
        self.steps(1)
    }

    /// The steps of looking at `bytes` of text, or at as many bytes of a list.
    #[inline]
    pub fn look_at(&mut self, bytes: usize) -> Result<()> {
        self.steps(1 + (bytes / STEP_BYTES) as u64)
    }

    /// The steps of looking through `n` names.
    #[inline]
    pub fn look_through(&mut self, n: usize) -> Result<()> {
        match n > NAMES_FREE {
            true => self.look_at(n.saturating_mul(NAME_BYTES)),
            false => Ok(()),
        }
    }

    #[inline]
    fn steps(&mut self, n: u64) -> Result<()> {
        match self.steps.checked_sub(n) {
            Some(left) if left > self.look => {
                self.steps = left;
                Ok(())
            }
            left => self.at_a_mark(left),
        }
    }

    #[cold]
    fn at_a_mark(&mut self, left: Option<u64>) -> Result<()> {
        let Some(left) = left else {
            return Err(Fault::at(
                0,
                Kind::Limit,
                format!("the template takes more than {MAX_STEPS} steps"),
            ));
        };
        self.steps = left;
        self.look = left.saturating_sub(LOOK);
        match self.cancel {
            Some(cancel) if cancel.is_triggered() => {
                Err(Fault::at(0, Kind::Cancelled, "cancelled"))
            }
            _ => Ok(()),
        }
    }

    /// Charges `n` bytes that are about to be made, and the steps of writing them.
    #[inline]
    pub fn make(&mut self, n: usize) -> Result<()> {
        match self.bytes.checked_sub(n as u64) {
            Some(left) => self.bytes = left,
            None => {
                return Err(Fault::at(
                    0,
                    Kind::Limit,
                    format!("the template makes more than {} bytes", self.all_bytes),
                ));
            }
        }
        match self.unasked.checked_sub(n.saturating_add(OBJECT_BYTES)) {
            Some(left) => self.unasked = left,
            None => self.ask()?,
        }
        match n < STEP_BYTES {
            true => Ok(()),
            false => self.look_at(n),
        }
    }

    #[cold]
    fn ask(&mut self) -> Result<()> {
        self.unasked = UNASKED;
        room(HEADROOM)
    }

    /// An empty list with room for `n` elements, charged.
    pub fn list<T>(&mut self, n: usize) -> Result<Vec<T>> {
        self.make(n.saturating_mul(size_of::<T>()))?;
        let mut list = Vec::new();
        match list.try_reserve_exact(n) {
            Ok(()) => Ok(list),
            Err(_) => Err(no_memory(n.saturating_mul(size_of::<T>()))),
        }
    }

    /// One more element, charged.
    #[inline]
    pub fn push<T>(&mut self, list: &mut Vec<T>, element: T) -> Result<()> {
        self.make(size_of::<T>())?;
        if list.len() == list.capacity() {
            let more = 1 + self.spare(list.len().max(3), size_of::<T>());
            list.try_reserve_exact(more)
                .map_err(|_| no_memory((list.len() + more) * size_of::<T>()))?;
        }
        list.push(element);
        Ok(())
    }

    /// More text, charged.
    #[inline]
    pub fn write(&mut self, text: &mut String, more: &str) -> Result<()> {
        self.make(more.len())?;
        if text.capacity() - text.len() < more.len() {
            let bytes = more.len() + self.spare(text.len(), 1);
            text.try_reserve_exact(bytes)
                .map_err(|_| no_memory(text.len() + bytes))?;
        }
        text.push_str(more);
        Ok(())
    }

    /// Elements that a buffer of `len` gets room for beyond what is needed: as many again, so that
    /// growing takes linear time, but no more than could still be made.
    fn spare(&self, len: usize, element: usize) -> usize {
        let left = self.bytes / element.max(1) as u64;
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// `n` times `c`, charged before there is any.
    pub fn fill(&mut self, text: &mut String, c: char, n: usize) -> Result<()> {
        let bytes = n.saturating_mul(c.len_utf8());
        self.make(bytes)?;
        text.try_reserve(bytes).map_err(|_| no_memory(bytes))?;
        text.extend(std::iter::repeat_n(c, n));
        Ok(())
    }
}

/// Asks for `bytes` and gives them back, for what cannot be told that memory is short.
pub fn room(bytes: usize) -> Result<()> {
    Vec::<u8>::new()
        .try_reserve_exact(bytes)
        .map_err(|_| no_memory(bytes))
}

/// The fault for memory that the system does not give.
pub fn no_memory(bytes: usize) -> Box<Fault> {
    let message = "the system refuses memory for the chat template";
    let mut fault = Fault::at(0, Kind::Memory, message);
    fault.bytes = bytes as u64;
    fault
}
