"""Mail a message of Driftline, which is read from stdin, by the machine's sendmail.

    [notify]
    command = ["/usr/bin/python3", "/etc/driftline/mail.py", "data-team@example.com"]

Needs Python alone, and a mail system that has `sendmail`. Exit code 0: the mail is in its queue.
"""

import json
import os
import socket
import subprocess
import sys
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, make_msgid

SENDMAIL = os.environ.get("SENDMAIL", "/usr/sbin/sendmail")

told = json.load(sys.stdin)
mail = EmailMessage(SMTP.clone(linesep="\n"))
mail["To"] = ", ".join(sys.argv[1:])
mail["From"] = f"driftline@{socket.getfqdn()}"
mail["Subject"] = told["title"]
mail["Date"] = formatdate(localtime=True)
mail["Message-ID"] = make_msgid()
mail["Auto-Submitted"] = "auto-generated"
mail.set_content(told["text"])
done = subprocess.run([SENDMAIL, "-i", "-t"], input=mail.as_bytes(), check=False)
sys.exit(done.returncode)
