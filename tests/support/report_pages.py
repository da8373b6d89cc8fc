"""What a reader finds in a page of `hifi report`."""

import base64
import re
from html import unescape
from pathlib import Path


def page_of(answer):
    """The page that a command wrote."""
    assert answer.code == 0, answer.err
    return Path(answer.out.strip()).read_text()


def sections_of(text):
    """The content of each section by its id, in the order of the page."""
    return dict(re.findall(r'<section[^>]* id="([^"]+)">(.*?)</section>', text, re.DOTALL))


def conclusion_of(text):
    """The sentences of the conclusion: by title of the runs, then by subject."""
    found = {}
    section = sections_of(text)["conclusion"]
    for title, content in re.findall(r"<h3>(.*?)</h3>\s*<dl>(.*?)</dl>", section, re.DOTALL):
        subjects = re.findall(r"<dt>(.*?)</dt>(.*?)(?=<dt>|\Z)", content, re.DOTALL)
        sentences = {
            unescape(subject): [unescape(one) for one in re.findall(r"<dd>(.*?)</dd>", words)]
            for subject, words in subjects
        }
        found[unescape(title)] = sentences
    return found


def pictures_of(section):
    """The PNG files of a section by their titles."""
    found = re.findall(
        r'<figcaption>(.*?)</figcaption><img alt="" src="data:image/png;base64,([^"]+)">', section
    )
    return {unescape(title): base64.b64decode(png) for title, png in found}


def cells_of(text, label):
    """The cells of the row with a label, of the first table that has it."""
    row = re.search(rf"<tr>\s*<td>{re.escape(label)}</td>(.*?)</tr>", text, re.DOTALL)[1]
    return re.findall(r"<td[^>]*>(.*?)</td>", row)


def without_pictures(text):
    """The page without its pictures, in which any short word may occur."""
    return re.sub(r"data:image/png;base64,[^\"]+", "", text)
