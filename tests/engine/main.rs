//! The engine on a model that thinks what a test says: scheduling, streams, text, sampling.

mod adapters;
mod batching;
mod calls;
mod chain;
mod failure;
mod parked;
mod parked_random;
mod prefix;
mod random;
mod requests;
mod sampler;
mod samples;
mod streams;
mod support;
mod text;
