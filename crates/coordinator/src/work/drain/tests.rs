//! Tests of drains.
