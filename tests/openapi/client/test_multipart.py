"""The framing of multipart serialize, judged by a parser that is not ours."""

from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart import FormParser
from python_multipart.multipart import Field, File

from opwire.openapi.client.serialize import FormPart, write_multipart


def escaped(text: str) -> str:
    """A name as browsers write it, here with the backslash too, which some parsers take for an escape."""
    return "".join(f"%{ord(each):02X}" if ord(each) < 32 or each in '"\\\x7f' else each for each in text)


def parsed(parts: list[FormPart]) -> list[tuple[str, str | None, bytes]]:
    """Name, file name and data of each part, as python-multipart reads them."""
    body, boundary = write_multipart(parts)
    found: list[tuple[str, str | None, bytes]] = []

    def on_field(field: Field) -> None:
        found.append(((field.field_name or b"").decode(), None, field.value or b""))

    def on_file(file: File) -> None:
        file.file_object.seek(0)
        found.append(((file.field_name or b"").decode(), (file.file_name or b"").decode(), file.file_object.read()))

    parser = FormParser("multipart/form-data", on_field, on_file, boundary=boundary)
    parser.write(body)
    parser.finalize()
    return found


def test_fields_and_files_are_read_by_another_parser() -> None:
    parts = [
        FormPart(name="note", data="grüße".encode()),
        FormPart(name="photo", data=b"\x89PNG\r\n\x00", filename="a b.png", content_type="image/png"),
        FormPart(name="empty", data=b""),
    ]
    assert parsed(parts) == [
        ("note", None, "grüße".encode()),
        ("photo", "a b.png", b"\x89PNG\r\n\x00"),
        ("empty", None, b""),
    ]


def test_parts_carry_their_content_type_and_headers() -> None:
    part = FormPart(name="a", data=b"{}", content_type="application/json", headers={"X-Kind": "meta"})
    body, boundary = write_multipart([part])
    head = f"Content-Type: multipart/form-data; boundary={boundary}\r\n\r\n".encode()
    message = next(BytesParser(policy=HTTP).parsebytes(head + body).iter_parts())
    assert dict(message.items()) == {
        "Content-Disposition": 'form-data; name="a"',
        "Content-Type": "application/json",
        "X-Kind": "meta",
    }


def test_the_headers_of_a_part_do_not_say_twice_what_it_is() -> None:
    headers = {"Content-Type": "text/plain", "content-disposition": "attachment", "X-A": "1"}
    body, _ = write_multipart([FormPart(name="a", data=b"", content_type="image/png", headers=headers)])
    assert body.lower().count(b"content-type") == body.lower().count(b"content-disposition") == 1
    assert b"X-A: 1\r\n" in body


def test_a_part_without_a_name_has_no_disposition() -> None:
    body, _ = write_multipart([FormPart(data=b"x", content_type="text/plain")])
    assert b"Content-Disposition" not in body


def test_a_form_without_parts_is_still_closed() -> None:
    body, boundary = write_multipart([])
    assert body == f"--{boundary}--\r\n".encode()


@pytest.mark.parametrize("bad", ['a"; name="admin', "a\r\nContent-Type: text/html\r\n\r\n", "a\\", "a\x00b"])
def test_a_name_cannot_end_its_quotes_or_its_line(bad: str) -> None:
    assert [name for name, _, _ in parsed([FormPart(name=bad, data=b"1")])] == [escaped(bad)]
    (found,) = parsed([FormPart(name="file", data=b"1", filename=bad)])
    assert found == ("file", escaped(bad), b"1")


@pytest.mark.parametrize(
    "part",
    [
        FormPart(name="a", data=b"", content_type="text/plain\r\nX-Evil: 1"),
        FormPart(name="a", data=b"", headers={"X-A": "1\r\nX-Evil: 1"}),
        FormPart(name="a", data=b"", headers={"X A": "1"}),
    ],
    ids=["content type", "header value", "header name"],
)
def test_what_would_add_a_line_to_a_part_is_refused(part: FormPart) -> None:
    with pytest.raises(ValueError, match=r"content type|header"):
        write_multipart([part])


def test_each_body_has_a_boundary_that_nobody_can_guess() -> None:
    boundaries = {write_multipart([])[1] for _ in range(100)}
    assert len(boundaries) == 100
    assert {len(boundary) for boundary in boundaries} == {32}


@given(st.lists(st.tuples(st.text("ab\"'\\\r\n;ä", min_size=1, max_size=5), st.binary(max_size=50)), max_size=4))
def test_parts_with_any_names_and_data_arrive_unchanged(given: list[tuple[str, bytes]]) -> None:
    parts = [FormPart(name=name, data=data) for name, data in given]
    assert parsed(parts) == [(escaped(name), None, data) for name, data in given]
