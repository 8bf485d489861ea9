//! Device libraries with one rule broken.
