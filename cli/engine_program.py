"""What `spark-submit` starts: a file that is run by its path, so it imports the package by name."""

from lakequeue.cli import main

if __name__ == "__main__":
    main(prog_name="lakequeue")
