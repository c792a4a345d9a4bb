"""The program that `spark-submit` runs by its path; it therefore imports the package by name."""

from lakequeue.cli import main

if __name__ == "__main__":
    main(prog_name="lakequeue")
