//! stub
use pluvio_format::*;
pub(crate) enum Step<'m> {
    Put(NewValue<'m>, Output),
    Delete,
    Keep(Output),
}
pub(crate) enum NewValue<'m> {
    Given(&'m [u8]),
    Built(Vec<u8>),
}
impl core::ops::Deref for NewValue<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Given(a) => a,
            Self::Built(b) => b,
        }
    }
}
pub(crate) fn change<'m>(change: &Change<'m>, _current: Option<&[u8]>) -> Result<Step<'m>, Unfit> {
    Ok(match change {
        Change::Put(p) => Step::Put(NewValue::Given(p.bytes()), Output::Nothing),
        Change::Delete => Step::Delete,
        _ => Step::Put(NewValue::Built(vec![]), Output::Nothing),
    })
}
pub(crate) fn project(_p: &Projection<'_>, value: &[u8]) -> Output {
    Output::Bytes(bytes::Bytes::copy_from_slice(value))
}
