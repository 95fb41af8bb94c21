//! The engine on a model that thinks what a test says: scheduling, streams, text, sampling.

mod adapters;
mod batching;
mod beams;
mod calls;
mod chain;
mod deciding;
mod draft_model;
mod drafts;
mod failure;
mod medusa;
mod pages;
mod parked;
mod prefix;
mod questions;
mod random;
mod requests;
mod sampler;
mod samples;
mod streams;
mod support;
mod text;
