; Setup, the installer for Windows. build_setup.py compiles this script, writes the lists of files, and defines VERSION,
; NUMBERS (the version as a.b.c.d), OUTPUT, ICON, TARGET, SIZE_KB and LONGEST (characters of the longest relative path).
;
;   Setup.exe [/S] [/ALLUSERS | /CURRENTUSER] [/DESKTOP] [/D=FOLDER]       (/D last, without quotation marks)
;   uninstall.exe [/S] [/REMOVERESULTS] [_?=FOLDER]                        (with _?= the caller can wait for the end)
;
; The new program is first written to a folder next to the old program. At the end, the folders are renamed. So after a
; crash, on a full disk, or while the program runs, the old or the new program is complete. Nothing is downloaded.
;
; Exit codes:
;   0   done
;   1   cancelled
;   3   Fieldray is running
;   4   the disk is full or cannot be written
;   5   the folder cannot be used
;   6   this version of Windows is not supported
;   7   an administrator is needed
;   8   the folder edgetpu-runtime has libraries of the wrong kind
;   9   another Setup is running

Unicode true
Target ${TARGET}
ManifestSupportedOS Win10
ManifestDPIAware true
ManifestLongPathAware true
RequestExecutionLevel user
SetCompressor /SOLID lzma
SetCompressorDictSize 32
CRCCheck on
AllowSkipFiles off
ShowInstDetails nevershow
ShowUninstDetails nevershow
BrandingText " "

!include MUI2.nsh
!include LogicLib.nsh
!include FileFunc.nsh
!include nsDialogs.nsh
!include WinVer.nsh
!include x64.nsh

!define REMEMBERED "Software\Microsoft\Windows\CurrentVersion\Uninstall\Fieldray"
!define RUNNING 3
!define NO_ROOM 4
!define BAD_FOLDER 5
!define UNFIT 6
!define NOT_ADMIN 7
!define WRONG_RUNTIME 8
!define TWICE 9

Name "Fieldray"
OutFile "${OUTPUT}"

Var Scope ; "user" or "all"
Var WantsDesktop ; 1 or 0
Var HasRuntime ; 1 if the folder edgetpu-runtime with usable libraries is next to Setup
Var Staging ; the folder of the new program until the folders are renamed
Var Parent
Var MadeParent
Var Busy
Var ExitCode
Var Message
Var FolderBox
Var UserButton
Var AllButton
Var DesktopBox
Var ResultsBox
Var WantsResultsGone
Var FilesOnly

!define MUI_ICON "${ICON}"
!define MUI_UNICON "${ICON}"
!define MUI_ABORTWARNING
Page custom AskPage LeaveAskPage
!insertmacro MUI_PAGE_INSTFILES
!define MUI_FINISHPAGE_RUN "$INSTDIR\fieldray-window.exe"
!define MUI_FINISHPAGE_RUN_TEXT "$(START_NOW)"
!define MUI_FINISHPAGE_TEXT "$(FINISHED)"
!insertmacro MUI_PAGE_FINISH
UninstPage custom un.AskPage un.LeaveAskPage
!insertmacro MUI_UNPAGE_INSTFILES
!insertmacro MUI_LANGUAGE "English"
!insertmacro MUI_LANGUAGE "Ukrainian"
!include texts.nsh

VIProductVersion "${NUMBERS}"
VIFileVersion "${NUMBERS}"
!macro About language description
  VIAddVersionKey /LANG=${language} "ProductName" "Fieldray"
  VIAddVersionKey /LANG=${language} "ProductVersion" "${VERSION}"
  VIAddVersionKey /LANG=${language} "FileVersion" "${VERSION}"
  VIAddVersionKey /LANG=${language} "FileDescription" "${description}"
  VIAddVersionKey /LANG=${language} "CompanyName" "The Fieldray project"
  VIAddVersionKey /LANG=${language} "LegalCopyright" "The Fieldray project. Apache License 2.0"
!macroend
!insertmacro About ${LANG_ENGLISH} "Fieldray Setup"
!insertmacro About ${LANG_UKRAINIAN} "Встановлення Fieldray"

; ---- shared by Setup and the uninstaller

!macro Shared prefix
; Show $Message in a window; in silent mode, print it to the console of the caller. Then end with $ExitCode.
Function ${prefix}Refuse
  ${If} ${Silent}
    System::Call 'kernel32::AttachConsole(i -1)'
    System::Call 'kernel32::GetStdHandle(i -11)p.r9'
    FileWrite $9 "$Message$\r$\n"
  ${Else}
    MessageBox MB_OK|MB_ICONSTOP "$Message"
  ${EndIf}
  SetErrorLevel $ExitCode
  Quit
FunctionEnd

; Set $Busy to 1 if a program in $INSTDIR runs, for any user. Windows then refuses to open its file for writing.
Function ${prefix}LookBusy
  StrCpy $Busy 0
  !insertmacro LookBusyFile "fieldray.exe"
  !insertmacro LookBusyFile "fieldray-window.exe"
  !insertmacro LookBusyFile "fieldray-worker.exe"
FunctionEnd

Function ${prefix}WaitUntilFree
  ${Do}
    Call ${prefix}LookBusy
    ${If} $Busy = 0
      Return
    ${EndIf}
    StrCpy $Message "$(IS_RUNNING)"
    StrCpy $ExitCode ${RUNNING}
    ${If} ${Silent}
      Call ${prefix}Refuse
    ${ElseIf} ${Cmd} `MessageBox MB_RETRYCANCEL|MB_ICONEXCLAMATION "$Message" IDCANCEL`
      SetErrorLevel ${RUNNING}
      Quit
    ${EndIf}
  ${Loop}
FunctionEnd

Function ${prefix}NeedAdministrator
  UserInfo::GetAccountType
  Pop $0
  ${If} $0 == "Admin"
    Return
  ${EndIf}
  ${If} ${Silent}
    StrCpy $Message "$(NEEDS_ADMINISTRATOR)"
    StrCpy $ExitCode ${NOT_ADMIN}
    Call ${prefix}Refuse
  ${EndIf}
  ; Windows asks for an administrator, and starts this program again with the same options.
  ${GetParameters} $0
  ExecShell "runas" "$EXEPATH" "$0 $Message"
  Quit
FunctionEnd
!macroend

!macro LookBusyFile name
  ${If} ${FileExists} "$INSTDIR\${name}"
    ClearErrors
    FileOpen $0 "$INSTDIR\${name}" a
    ${If} ${Errors}
      StrCpy $Busy 1
    ${Else}
      FileClose $0
    ${EndIf}
  ${EndIf}
!macroend

!insertmacro Shared ""
!insertmacro Shared "un."

; ---- Setup

Function .onInit
  SetRegView 64
  ${IfNot} ${RunningX64}
  ${OrIfNot} ${AtLeastWin10}
    StrCpy $Message "$(NEEDS_WINDOWS)"
    StrCpy $ExitCode ${UNFIT}
    Call Refuse
  ${EndIf}
  System::Call 'kernel32::CreateMutexW(p 0, i 1, w "FieldraySetup") p.r1 ?e'
  Pop $0
  ${If} $0 = 183 ; ERROR_ALREADY_EXISTS
    StrCpy $Message "$(SETUP_RUNS)"
    StrCpy $ExitCode ${TWICE}
    Call Refuse
  ${EndIf}
  ${If} $INSTDIR == "" ; NSIS ignores an invalid /D=. Setup must then refuse, and not use another folder.
    System::Call 'kernel32::GetCommandLineW() w.r0'
    ClearErrors
    ${GetOptions} $0 " /D=" $R1
    ${IfNot} ${Errors}
      StrCpy $Message "$(FOLDER_NO_NAME)"
      StrCpy $ExitCode ${BAD_FOLDER}
      Call Refuse
    ${EndIf}
  ${EndIf}
  ${GetParameters} $R0
  StrCpy $WantsDesktop 0
  ClearErrors
  ${GetOptions} $R0 "/DESKTOP" $R1
  ${IfNot} ${Errors}
    StrCpy $WantsDesktop 1
  ${EndIf}
  StrCpy $Scope "user"
  ClearErrors
  ${GetOptions} $R0 "/ALLUSERS" $R1
  ${IfNot} ${Errors}
    StrCpy $Scope "all"
    StrCpy $Message ""
    Call NeedAdministrator
  ${EndIf}
  Call TakeScope
  Call LookForRuntime
FunctionEnd

; Set $INSTDIR, unless /D= names a folder: the folder of the installed program, else the default folder of $Scope.
Function TakeScope
  ${If} $Scope == "all"
    SetShellVarContext all
    StrCpy $0 "$PROGRAMFILES64\Fieldray"
  ${Else}
    SetShellVarContext current
    StrCpy $0 "$LOCALAPPDATA\Programs\Fieldray"
  ${EndIf}
  ${If} $INSTDIR == ""
    ReadRegStr $INSTDIR SHCTX "${REMEMBERED}" "InstallLocation"
  ${EndIf}
  ${If} $INSTDIR == ""
    StrCpy $INSTDIR $0
  ${EndIf}
FunctionEnd

; Look for the Edge TPU runtime next to Setup: edgetpu.dll and libusb-1.0.dll, for 64-bit Windows on Intel and AMD.
Function LookForRuntime
  StrCpy $HasRuntime 0
  ${IfNot} ${FileExists} "$EXEDIR\edgetpu-runtime\*.*"
    Return
  ${EndIf}
  StrCpy $HasRuntime 1
  StrCpy $0 "$EXEDIR\edgetpu-runtime\edgetpu.dll"
  Call LookAtLibrary
  StrCpy $0 "$EXEDIR\edgetpu-runtime\libusb-1.0.dll"
  ${If} $HasRuntime = 1
  ${AndIf} ${FileExists} $0
    Call LookAtLibrary
  ${EndIf}
  ${If} $HasRuntime = 1
    Return
  ${EndIf}
  StrCpy $Message "$(RUNTIME_WRONG)"
  StrCpy $ExitCode ${WRONG_RUNTIME}
  ${If} ${Silent}
    Call Refuse
  ${ElseIf} ${Cmd} `MessageBox MB_OKCANCEL|MB_ICONEXCLAMATION "$Message$\r$\n$\r$\n$(RUNTIME_WITHOUT)" IDCANCEL`
    SetErrorLevel ${WRONG_RUNTIME}
    Quit
  ${EndIf}
FunctionEnd

; Set $HasRuntime to 1 if the file $0 is a library for x86-64 (machine 0x8664 in the PE header), else to 0.
Function LookAtLibrary
  StrCpy $HasRuntime 0
  ClearErrors
  FileOpen $1 $0 r
  ${If} ${Errors}
    Return
  ${EndIf}
  FileReadWord $1 $2
  FileSeek $1 60
  FileReadWord $1 $3
  FileSeek $1 $3
  FileReadWord $1 $4
  FileReadWord $1 $5
  FileReadWord $1 $6
  FileClose $1
  ${If} $2 = 0x5A4D
  ${AndIf} $4 = 0x4550
  ${AndIf} $5 = 0
  ${AndIf} $6 = 0x8664
    StrCpy $HasRuntime 1
  ${EndIf}
FunctionEnd

Function AskPage
  !insertmacro MUI_HEADER_TEXT "Fieldray ${VERSION}" "$(RESEARCH_ONLY)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateRadioButton} 0 0 100% 12u "$(FOR_ME)"
  Pop $UserButton
  ${NSD_CreateRadioButton} 0 14u 100% 12u "$(FOR_ALL)"
  Pop $AllButton
  ${NSD_CreateLabel} 0 32u 100% 10u "$(FOLDER)"
  Pop $0
  ${NSD_CreateDirRequest} 0 43u 78% 13u "$INSTDIR"
  Pop $FolderBox
  ${NSD_CreateButton} 80% 42u 20% 15u "$(BROWSE)"
  Pop $0
  ${NSD_OnClick} $0 Browse
  ${NSD_CreateCheckbox} 0 62u 100% 12u "$(DESKTOP_ICON)"
  Pop $DesktopBox
  ${If} $HasRuntime = 1
    ${NSD_CreateLabel} 0 82u 100% 50u "$(RUNTIME_FOUND)"
  ${Else}
    ${NSD_CreateLabel} 0 82u 100% 50u "$(RUNTIME_ABSENT)"
  ${EndIf}
  Pop $0
  ${If} $Scope == "all"
    ${NSD_Check} $AllButton
  ${Else}
    ${NSD_Check} $UserButton
  ${EndIf}
  ${NSD_SetState} $DesktopBox $WantsDesktop
  ${NSD_OnClick} $UserButton ChangeScope
  ${NSD_OnClick} $AllButton ChangeScope
  GetDlgItem $0 $HWNDPARENT 1
  SendMessage $0 ${WM_SETTEXT} 0 "STR:$(^InstallBtn)"
  nsDialogs::Show
FunctionEnd

Function Browse
  Pop $0
  nsDialogs::SelectFolderDialog "$(FOLDER)" "$INSTDIR"
  Pop $0
  ${If} $0 != error
    ${NSD_SetText} $FolderBox "$0\Fieldray"
  ${EndIf}
FunctionEnd

Function ChangeScope
  Pop $0
  ${NSD_GetState} $AllButton $0
  StrCpy $Scope "user"
  ${If} $0 = ${BST_CHECKED}
    StrCpy $Scope "all"
  ${EndIf}
  StrCpy $INSTDIR ""
  Call TakeScope
  ${NSD_SetText} $FolderBox "$INSTDIR"
FunctionEnd

Function LeaveAskPage
  ${NSD_GetText} $FolderBox $INSTDIR
  ${NSD_GetState} $DesktopBox $WantsDesktop
  ${If} $Scope == "all"
    StrCpy $Message "/ALLUSERS"
    ${If} $WantsDesktop = 1
      StrCpy $Message "/ALLUSERS /DESKTOP"
    ${EndIf}
    Call NeedAdministrator
  ${EndIf}
FunctionEnd

; Refuse a folder that has other files than Fieldray, and a folder whose path is too long. A missing folder is accepted.
Function CheckFolder
  StrCpy $ExitCode ${BAD_FOLDER}
  StrCpy $0 $INSTDIR 1 -1
  ${If} $0 == "\"
    StrCpy $INSTDIR $INSTDIR -1
  ${EndIf}
  ${GetParent} $INSTDIR $Parent
  StrCpy $0 $INSTDIR 2 1
  StrCpy $1 $INSTDIR 2
  ${If} $Parent == ""
  ${OrIf} $0 != ":\"
  ${AndIf} $1 != "\\"
    StrCpy $Message "$(FOLDER_NO_NAME)"
    Call Refuse
  ${EndIf}
  StrLen $0 $INSTDIR
  IntOp $0 $0 + ${LONGEST}
  IntOp $0 $0 + 6 ; room for ".new" and separators
  ReadRegDWORD $1 HKLM "SYSTEM\CurrentControlSet\Control\FileSystem" "LongPathsEnabled"
  ${If} $0 > 259
  ${AndIf} $1 != 1
    StrCpy $Message "$(FOLDER_TOO_LONG)"
    Call Refuse
  ${EndIf}
  ${If} ${FileExists} "$INSTDIR\*.*"
  ${AndIfNot} ${FileExists} "$INSTDIR\install.ini"
    RMDir "$INSTDIR" ; removes only an empty folder
    ${If} ${FileExists} "$INSTDIR\*.*"
      StrCpy $Message "$(FOLDER_FOREIGN)"
      Call Refuse
    ${EndIf}
  ${EndIf}
FunctionEnd

Function CheckRoom
  StrCpy $0 $Parent 3
  ClearErrors
  ${DriveSpace} $0 "/D=F /S=K" $1
  ${IfNot} ${Errors}
  ${AndIf} $1 < ${SIZE_KB}
    StrCpy $Message "$(NO_ROOM_LEFT)"
    StrCpy $ExitCode ${NO_ROOM}
    Call Refuse
  ${EndIf}
FunctionEnd

; Remove the files of the new program. An older program is not changed.
Function TakeBack
  SetOutPath $TEMP
  RMDir /r "$Staging"
  ${If} $MadeParent = 1
    RMDir "$Parent"
  ${EndIf}
FunctionEnd

Function .onInstFailed
  Call TakeBack
  StrCpy $Message "$(NOT_WRITTEN)"
  StrCpy $ExitCode ${NO_ROOM}
  Call Refuse
FunctionEnd

Function LayRuntime
  ${If} $HasRuntime = 1
    CopyFiles /SILENT /FILESONLY "$EXEDIR\edgetpu-runtime\edgetpu.dll" "$Staging"
    ${If} ${FileExists} "$EXEDIR\edgetpu-runtime\libusb-1.0.dll"
      CopyFiles /SILENT /FILESONLY "$EXEDIR\edgetpu-runtime\libusb-1.0.dll" "$Staging"
    ${EndIf}
  ${Else} ; keep the runtime that an earlier Setup has installed
    ${If} ${FileExists} "$INSTDIR\edgetpu.dll"
      CopyFiles /SILENT /FILESONLY "$INSTDIR\edgetpu.dll" "$Staging"
    ${EndIf}
    ${If} ${FileExists} "$INSTDIR\libusb-1.0.dll"
      CopyFiles /SILENT /FILESONLY "$INSTDIR\libusb-1.0.dll" "$Staging"
    ${EndIf}
  ${EndIf}
FunctionEnd

; Rename the old program's folder to $INSTDIR.old, and the new program's folder to $INSTDIR. Then the old program's own
; uninstaller removes the old files.
Function ChangePlaces
  SetOutPath $TEMP ; the current folder of a process cannot be renamed
  ${If} ${FileExists} "$INSTDIR\install.ini"
    Call WaitUntilFree
    RMDir /r "$INSTDIR.old"
    ClearErrors
    Rename "$INSTDIR" "$INSTDIR.old"
    ${If} ${Errors}
      Call TakeBack
      StrCpy $Message "$(FOLDER_IN_USE)"
      StrCpy $ExitCode ${RUNNING}
      Call Refuse
    ${EndIf}
  ${EndIf}
  ClearErrors
  Rename "$Staging" "$INSTDIR"
  ${If} ${Errors}
    Rename "$INSTDIR.old" "$INSTDIR"
    Call TakeBack
    StrCpy $Message "$(FOLDER_IN_USE)"
    StrCpy $ExitCode ${BAD_FOLDER}
    Call Refuse
  ${EndIf}
  ${If} ${FileExists} "$INSTDIR.old\uninstall.exe"
    ExecWait '"$INSTDIR.old\uninstall.exe" /S /FILESONLY _?=$INSTDIR.old'
    Delete "$INSTDIR.old\uninstall.exe"
    RMDir "$INSTDIR.old"
    ${If} ${FileExists} "$INSTDIR.old\*.*" ; files that the user has put into the folder are kept
      ClearErrors
      CopyFiles /SILENT "$INSTDIR.old\*.*" "$INSTDIR"
      ${IfNot} ${Errors}
        RMDir /r "$INSTDIR.old"
      ${EndIf}
    ${EndIf}
  ${EndIf}
FunctionEnd

Section
  Call CheckFolder
  Call CheckRoom
  Call WaitUntilFree
  StrCpy $Staging "$INSTDIR.new"
  StrCpy $MadeParent 0
  ${IfNot} ${FileExists} "$Parent\*.*"
    StrCpy $MadeParent 1
  ${EndIf}
  RMDir /r "$Staging"
  SetOverwrite on
  !include "${INSTALL_LIST}"
  SetOutPath $Staging
  ClearErrors
  WriteUninstaller "$Staging\uninstall.exe"
  WriteINIStr "$Staging\install.ini" "Fieldray" "Scope" "$Scope"
  WriteINIStr "$Staging\install.ini" "Fieldray" "Version" "${VERSION}"
  Call LayRuntime
  ${If} ${Errors}
    Call .onInstFailed
  ${EndIf}
  Call ChangePlaces
  Call Remember
SectionEnd

Function Remember
  CreateShortcut "$SMPROGRAMS\Fieldray.lnk" "$INSTDIR\fieldray-window.exe"
  ${If} $WantsDesktop = 1
    CreateShortcut "$DESKTOP\Fieldray.lnk" "$INSTDIR\fieldray-window.exe"
  ${EndIf}
  WriteRegStr SHCTX "${REMEMBERED}" "DisplayName" "Fieldray"
  WriteRegStr SHCTX "${REMEMBERED}" "DisplayVersion" "${VERSION}"
  WriteRegStr SHCTX "${REMEMBERED}" "Publisher" "The Fieldray project"
  WriteRegStr SHCTX "${REMEMBERED}" "DisplayIcon" "$INSTDIR\fieldray-window.exe"
  WriteRegStr SHCTX "${REMEMBERED}" "InstallLocation" "$INSTDIR"
  WriteRegStr SHCTX "${REMEMBERED}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr SHCTX "${REMEMBERED}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD SHCTX "${REMEMBERED}" "EstimatedSize" ${SIZE_KB}
  WriteRegDWORD SHCTX "${REMEMBERED}" "NoModify" 1
  WriteRegDWORD SHCTX "${REMEMBERED}" "NoRepair" 1
FunctionEnd

; ---- the uninstaller

Function un.onInit
  SetRegView 64
  StrCpy $FilesOnly 0
  StrCpy $WantsResultsGone 0
  ${GetParameters} $R0
  ClearErrors
  ${GetOptions} $R0 "/REMOVERESULTS" $R1
  ${IfNot} ${Errors}
    StrCpy $WantsResultsGone 1
  ${EndIf}
  ClearErrors
  ${GetOptions} $R0 "/FILESONLY" $R1
  ${IfNot} ${Errors}
    StrCpy $FilesOnly 1
    Return
  ${EndIf}
  SetShellVarContext current
  ReadINIStr $Scope "$INSTDIR\install.ini" "Fieldray" "Scope"
  ${If} $Scope == "all"
    SetShellVarContext all
    StrCpy $Message "_?=$INSTDIR"
    Call un.NeedAdministrator
  ${EndIf}
FunctionEnd

Function un.AskPage
  !insertmacro MUI_HEADER_TEXT "Fieldray ${VERSION}" "$(REMOVE)"
  nsDialogs::Create 1018
  Pop $0
  ${NSD_CreateLabel} 0 0 100% 24u "$(WILL_BE_REMOVED)"
  Pop $0
  ${NSD_CreateCheckbox} 0 30u 100% 12u "$(RESULTS_TOO)"
  Pop $ResultsBox
  ${NSD_SetState} $ResultsBox $WantsResultsGone
  ${NSD_CreateLabel} 0 46u 100% 40u "$(RESULTS_STAY)"
  Pop $0
  GetDlgItem $0 $HWNDPARENT 1
  SendMessage $0 ${WM_SETTEXT} 0 "STR:$(^UninstallBtn)"
  nsDialogs::Show
FunctionEnd

Function un.LeaveAskPage
  ${NSD_GetState} $ResultsBox $WantsResultsGone
FunctionEnd

Section "Uninstall"
  ${If} $FilesOnly = 0
    Call un.WaitUntilFree
  ${EndIf}
  SetOutPath $TEMP
  !include "${REMOVE_LIST}"
  Delete "$INSTDIR\edgetpu.dll"
  Delete "$INSTDIR\libusb-1.0.dll"
  Delete "$INSTDIR\install.ini"
  Delete "$INSTDIR\uninstall.exe"
  RMDir "$INSTDIR"
  ${If} $FilesOnly = 0
    Delete "$SMPROGRAMS\Fieldray.lnk"
    Delete "$DESKTOP\Fieldray.lnk"
    DeleteRegKey SHCTX "${REMEMBERED}"
    DeleteRegKey /ifempty SHCTX "Software\Microsoft\Windows\CurrentVersion\Uninstall" ; Setup may have made this key
  ${EndIf}
  ${If} $WantsResultsGone = 1
    SetShellVarContext current ; results belong to this user, even if the program was installed for all users
    RMDir /r "$LOCALAPPDATA\fieldray"
  ${EndIf}
SectionEnd
