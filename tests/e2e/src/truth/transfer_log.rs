//! The test bed's account.
